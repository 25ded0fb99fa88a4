"""A table in DynamoDB: sends calls, handles the answers' times and errors, and reads records."""

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from onceward.core.clock import Clock
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply
from onceward.core.register import Answered
from onceward.core.retries import jittered
from onceward.errors import StoreError
from onceward.observe.events import StoreRequest
from onceward.stores.contract import Damaged, DamagedRecord
from onceward.stores.dynamodb import blobs, replies
from onceward.stores.dynamodb.items import Item, Layout, reason
from onceward.stores.dynamodb.replies import member, name_of, read_in, units
from onceward.stores.dynamodb.requests import Requests
from onceward.stores.observed import Observed, Tell
from onceward.wire.calls import Call, Many, ObjectCall, ServiceAnswer
from onceward.wire.clock import ServerClock
from onceward.wire.codes import code_of
from onceward.wire.wires import Wires

_KEYS: Final = 100  # of one BatchGetItem: DynamoDB's own limit
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4)  # seconds before unread keys are requested again


class DynamoTable(Observed):
    """A table whose items are records, and the wires to it. For the arguments, see :class:`DynamoStore`."""

    def __init__(
        self, table: str, wires: Wires, layout: Layout, url: str, clock: Clock, kept: blobs.Blobs | None
    ) -> None:
        self.url = url
        self.layout = layout
        self.blobs = kept
        self.requests = Requests(table, layout)
        self.clock = ServerClock(clock)
        self._s3_clock = ServerClock(clock)  # only signatures go by it
        self._wires = wires
        self.may_renew = wires.may_renew

    def exchange(self, request: Any) -> object:
        """Send a call, or many in parallel."""
        asked: Call | ObjectCall | Many = request
        return self._wires.send(asked, self._signing(asked))

    async def exchange_async(self, request: Any) -> object:
        asked: Call | ObjectCall | Many = request
        return await self._wires.send_async(asked, self._signing(asked))

    def _signing(self, request: object) -> float:
        return (self._s3_clock if type(request) is ObjectCall and self._s3_clock.known else self.clock).signing()

    def close(self) -> None:
        self._wires.close()

    def observe(self, tell: Tell) -> None:
        """See :meth:`Observed.observe`. From now on each answer reports the capacity that it consumed."""
        super().observe(tell)
        self.requests = Requests(self.requests.table, self.layout, metered=True)

    def told_of(self, request: object, reply: object, seconds: float) -> list[StoreRequest]:
        if isinstance(request, Many):
            replies = reply if isinstance(reply, list) else [reply] * len(request.calls)
            pairs = zip(request.calls, replies, strict=True)
            return [told for one, met in pairs for told in self.told_of(one, met, seconds)]
        action = name_of(cast("Call | ObjectCall", request))
        if not isinstance(reply, ServiceAnswer):
            return [StoreRequest(self.url, action, seconds, type(reply).__name__)]
        code = "" if reply.status == 200 else code_of(reply)
        return [StoreRequest(self.url, action, reply.received - reply.sent, code, units(reply))]

    def ask(self, call: Call | ObjectCall, *, gone: int = 200) -> Steps[ServiceAnswer]:
        """Send a call and return its answer. Raises StoreError for an error other than the status ``gone``."""
        answer = yield from self.heard(call, cast("ServiceAnswer", (yield call)))
        if answer.status not in {200, gone}:
            raise self.failure(call, answer)
        return answer

    def ask_many(self, calls: tuple[Call, ...], *, again: bool = True) -> Steps[list[ServiceAnswer | StoreError]]:
        """Send calls in parallel. Return their answers, refusals included, or an error for each without an answer."""
        got: Sequence[object]
        if len(calls) > 1:
            got = cast("list[object]", (yield Many(calls)))
        else:
            try:
                got = [(yield calls[0])]
            except StoreError as error:
                got = [error]
        answers: list[ServiceAnswer | StoreError] = []
        for call, answer in zip(calls, got, strict=True):
            if isinstance(answer, StoreError):
                answers.append(answer)
            elif isinstance(answer, ServiceAnswer):
                try:
                    answers.append((yield from self.heard(call, answer, again=again)))
                except StoreError as error:
                    answers.append(error)
            else:
                raise cast("Exception", answer)
        return answers

    def heard(self, call: Call | ObjectCall, answer: ServiceAnswer, *, again: bool = True) -> Steps[ServiceAnswer]:
        """Learn an answer's time. If its signature was refused and may now be accepted, send the call once more."""
        while True:
            (self.clock if isinstance(call, Call) else self._s3_clock).learn(answer)
            if not again or not self.may_renew(answer):
                return answer
            again = False
            answer = cast("ServiceAnswer", (yield call))

    def failure(self, call: Call | ObjectCall, answer: ServiceAnswer) -> StoreError:
        """Return the error that an answer is."""
        return replies.failure(call, answer, url=self.url, keys=" and ".join(part.name for part in self.layout.parts))

    def learn_time(self) -> Steps[None]:
        """Read any key, so that the answer shows the time."""
        if not self.clock.known:
            yield from self.ask(self.requests.get("?", consistent=False))
            if not self.clock.known:
                raise StoreError(
                    f"ledger {self.url}: its answers have no Date header of DynamoDB's own, and no lease is safe without its time. A "
                    "server in its place must send Date, and application/x-amz-json-1.0 as the type"
                )

    # --- records --------------------------------------------------------------------------------------------------

    def read(self, item: Item) -> Record:
        """Return an item as a record. A result in S3 is not fetched yet.

        Raises:
            DamagedRecord: it cannot be read.
        """
        layout = self.layout
        try:
            record = layout.record(item)
            kept = item.get(layout.names["result"])
            if kept is not None and "M" in kept:
                return record._replace(result=blobs.elsewhere(self.ask, self.blobs, record, kept))
        except (StoreError, LookupError, ValueError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, StoreError) else f"its item makes no sense ({reason(error)})"
            raise self._damaged(Damaged(layout.key_in(item), why, item)) from error
        return record

    def _damaged(self, seen: Damaged) -> DamagedRecord:
        return DamagedRecord(
            f"{seen.key}: ledger {self.url} has a record of this key that cannot be read: {seen.why}. To delete it, so that the "
            "next delivery runs, clear the key",
            seen,
        )

    def sorted_out(self, items: Sequence[Item]) -> tuple[list[Record], list[Damaged]]:
        """Return items as records, and those that cannot be read."""
        records: list[Record] = []
        damaged: list[Damaged] = []
        for item in items:
            try:
                records.append(self.read(item))
            except DamagedRecord as error:
                damaged.append(error.damaged)
        return records, damaged

    def look(self, key: str, *, consistent: bool) -> Steps[Reply]:
        """Read one record."""
        answer = yield from self.ask(self.requests.get(key, consistent=consistent))
        item = member(answer, "Item")
        return Reply(False, self.read(item) if item else None, self.clock.earliest())

    def look_many(self, keys: Sequence[str]) -> Steps[dict[str, Answered]]:
        """Read records consistently: None for one that is gone, an error for one that cannot be read.

        Raises:
            StoreError: the request was refused, or there is no answer, or one that makes no sense.
        """
        found: dict[str, Answered] = {}
        todo, pauses = list(keys), iter(_PAUSES)
        while todo:
            asked = todo[:_KEYS]
            answer = yield from self.ask(self.requests.get_many([self.layout.key(key) for key in asked]))
            items, unread = read_in(answer, self.requests.table)
            left = set(map(self.layout.key_in, unread))
            records, damaged = self.sorted_out(items)
            read: dict[str, Record] = {record.key: record for record in records}
            now = self.clock.earliest()
            found |= {key: Reply(False, read.get(key), now) for key in asked if key not in left}
            found |= {one.key: self._damaged(one) for one in damaged}
            if left >= set(asked) and (pause := next(pauses, None)) is not None:
                yield jittered(pause)
            elif left >= set(asked):
                throttled = StoreError(f"ledger {self.url}: dynamodb:BatchGetItem was throttled", transient=True)
                return found | dict.fromkeys(todo, throttled)
            todo = [key for key in asked if key in left] + todo[_KEYS:]
        return found

    def hinted(self, keys: Sequence[str]) -> Steps[tuple[list[Record], list[Damaged]]]:
        """Read the records that an index has hinted at, which may be late. Leave out those that are gone."""
        found = yield from self.look_many(keys)
        records: list[Record] = []
        damaged: list[Damaged] = []
        for key in keys:
            reply = found[key]
            if isinstance(reply, DamagedRecord):
                damaged.append(reply.damaged)
            elif isinstance(reply, StoreError):
                raise reply
            elif reply.record is not None:
                records.append(reply.record)
        return records, damaged


def token(last: Item | None) -> str | None:
    """Return where a page goes on after this key."""
    return None if not last else json.dumps(last, separators=(",", ":"))


def resumed(after: str) -> Item:
    """Return the key of :func:`token`. Raises StoreError."""
    try:
        key = json.loads(after)
    except ValueError:
        key = None
    if not isinstance(key, dict):
        raise StoreError(
            f"{after!r} is not the place where an earlier page of this ledger ended: begin again without it"
        )
    return key
