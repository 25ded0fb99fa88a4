"""A table in DynamoDB: sends calls, reads records, and handles the answers' times and errors (``wire/calls.py``)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply
from onceward.core.register import Answered
from onceward.errors import StoreError
from onceward.observe.events import StoreRequest
from onceward.stores.contract import Damaged, DamagedRecord
from onceward.stores.dynamodb.blobs import Blobs, elsewhere
from onceward.stores.dynamodb.items import Item, Layout, reason
from onceward.stores.dynamodb.requests import Requests
from onceward.stores.observed import Observed, Tell
from onceward.wire.calls import FIXES, Call, Many, ObjectCall, ServiceAnswer, code_of, message_of, passes
from onceward.wire.clock import ServerClock
from onceward.wire.wires import Wires

REFUSED, CANCELED = "ConditionalCheckFailed", "TransactionCanceled"

_FIXES = {
    **FIXES,
    "AccessDenied": "allow {action} on the table in the IAM policy of these credentials",
    "ItemCollectionSizeLimitExceeded": "an item collection with local indexes may hold 10 GB: use a table without them",
    "ResourceNotFound": "there is no such table in this region: create it with `onceward init --store '{url}'`, or check the "
    "table's name and the region",
    "Validation": "check that the table's key is the one given here ({keys}), of type S",
    "NoSuchBucket": "there is no such bucket: check blobs= and the region",
}


class DynamoTable(Observed):
    """A table whose items are records, and the wires to it. For the arguments, see :class:`DynamoStore`."""

    def __init__(
        self,
        table: str,
        wires: Wires,
        *,
        layout: Layout | None = None,
        blobs: Blobs | None = None,
        probe: bool = False,
        url: str | None = None,
        clock: Clock = boottime,
    ) -> None:
        self.url = url or f"dynamodb://{table}"
        self.layout = layout or Layout()
        self.blobs = blobs
        self.max_result = (256 if blobs is None else 16 * 1024) * 1024  # an item has 400 KB in all
        self.probe = probe  # whether an insert reads first
        self.requests = Requests(table, self.layout)
        self.clock = ServerClock(clock)
        self._s3_clock = ServerClock(clock)  # only signatures go by it
        self._wires = wires
        self.may_renew = wires.may_renew

    def exchange(self, request: Any) -> object:
        """Send a call, or many in parallel."""
        return self._wires.send(request, self._signing(request))

    async def exchange_async(self, request: Any) -> object:
        return await self._wires.send_async(request, self._signing(request))

    def _signing(self, request: object) -> float:
        return (self._s3_clock if type(request) is ObjectCall and self._s3_clock.known else self.clock).signing()

    def close(self) -> None:
        self._wires.close()

    def observe(self, tell: Tell) -> None:
        """See :meth:`Observed.observe`. From now on each answer reports the capacity that it consumed."""
        super().observe(tell)
        self.requests = Requests(self.requests.table, self.layout, metered=True)

    def events_of(self, request: object, reply: object, seconds: float) -> "list[StoreRequest]":
        if isinstance(request, Many):
            replies = reply if isinstance(reply, list) else [reply] * len(request.calls)
            pairs = zip(request.calls, replies, strict=True)
            return [event for one, answer in pairs for event in self.events_of(one, answer, seconds)]
        action = name_of(cast("Call | ObjectCall", request))
        if not isinstance(reply, ServiceAnswer):
            return [StoreRequest(self.url, action, seconds, type(reply).__name__)]
        code = "" if reply.status == 200 else code_of(reply)
        return [StoreRequest(self.url, action, reply.received - reply.sent, code, units(reply))]

    def ask(self, call: Call | ObjectCall, *, accept: int = 200) -> Steps[ServiceAnswer]:
        """Send a call and return its answer. Raises StoreError for an error other than the status ``accept``."""
        answer = yield from self.learn_from(call, (yield call))
        if answer.status not in {200, accept}:
            raise self.failure(call, answer)
        return answer

    def ask_many(self, calls: tuple[Call, ...], *, again: bool = True) -> Steps[list[ServiceAnswer | StoreError]]:
        """Send calls in parallel. Return their answers, refusals included, or an error for each without an answer."""
        answers: list[ServiceAnswer | StoreError] = []
        got: Sequence[object] = ()
        try:
            if len(calls) > 1:
                got = yield Many(calls)
            elif calls:
                got = [(yield calls[0])]
        except StoreError as error:
            got = [error] * len(calls)
        for call, answer in zip(calls, got, strict=True):
            if isinstance(answer, StoreError):
                answers.append(answer)
            elif isinstance(answer, ServiceAnswer):
                try:
                    answers.append((yield from self.learn_from(call, answer, again=again)))
                except StoreError as error:
                    answers.append(error)
            else:
                raise cast("Exception", answer)
        return answers

    def learn_from(self, call: Call | ObjectCall, answer: ServiceAnswer, *, again: bool = True) -> Steps[ServiceAnswer]:
        """Learn an answer's time. If its signature was refused and may now be accepted, send the call once more."""
        (self.clock if isinstance(call, Call) else self._s3_clock).learn(answer)
        if again and self.may_renew(answer):
            return (yield from self.learn_from(call, (yield call), again=False))
        return answer

    def failure(self, call: Call | ObjectCall, answer: ServiceAnswer) -> StoreError:
        """Return the error that an answer is. It names the table, the action and, if known, the fix."""
        code, message, action, transient = code_of(answer), message_of(answer), name_of(call), passes(answer)
        # In a transaction any write on any table can be the cause; the message says which.
        fix = "" if transient or action == "dynamodb:TransactWriteItems" else _FIXES.get(code, "")
        if fix and ("hashkey" in message or "rangekey" in message):
            fix = "a key may have 2048 bytes, or 1024 where it is the sort key: give the guard a shorter name"
        elif fix and "size has exceeded" in message:
            fix = (
                "an item may have 400 KB: lower max_result, or keep large results in S3 with blobs='s3://bucket/prefix'"
            )
        keys = " and ".join(part.name for part in self.layout.parts)
        advice = f": {fix.format(action=action, url=self.url, keys=keys)}" if fix else ""
        return StoreError(f"ledger {self.url}: {action} was refused, {code} ({message}){advice}", transient=transient)

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
            value = item.get(layout.names["result"])
            if value is not None and "M" in value:
                return record._replace(result=elsewhere(self.ask, self.blobs, record, value))
        except (StoreError, LookupError, ValueError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, StoreError) else f"its item makes no sense ({reason(error)})"
            key = layout.key_in(item)
            raise DamagedRecord(
                f"{key}: ledger {self.url} has a record of this key that cannot be read: {why}. To delete it, so that the "
                "next delivery runs, clear the key",
                Damaged(key, why, item),
            ) from error
        return record

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
        call = self.requests.get(key, consistent=consistent)
        return self._reply_to(call, (yield from self.ask(call)))

    def look_many(self, keys: Sequence[str]) -> Steps[dict[str, Answered]]:
        """Read records consistently: None for one that is gone, an error for one that could not be read."""
        replies: dict[str, Answered] = {}
        calls = self.requests.statements([self.requests.reading(key) for key in keys])
        answers = yield from self.ask_many(calls)
        each = [(call, one) for call, answer in zip(calls, answers, strict=True) for one in apart(call, answer)]
        if any(isinstance(one, ServiceAnswer) and code_of(one) == "AccessDenied" for _, one in each):
            alone = tuple(self.requests.get(key, consistent=True) for key in keys)  # an older role
            each = list(zip(alone, (yield from self.ask_many(alone)), strict=True))
        for key, (call, answer) in zip(keys, each, strict=True):
            try:
                replies[key] = self._reply_to(call, answer)
            except StoreError as error:
                replies[key] = error
        return replies

    def _reply_to(self, call: Call, answer: ServiceAnswer | StoreError) -> Reply:
        if isinstance(answer, StoreError):
            raise answer
        if answer.status != 200:
            raise self.failure(call, answer)
        item = member(answer, "Item")
        return Reply(False, self.read(item) if item else None, self.clock.earliest())


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


def won(record: Record | None, answer: ServiceAnswer, stamp: float) -> Reply:
    """Return the reply to a write that was made and stamped with ``stamp``, the latest time possible.

    So the lease counts from before the request was sent. If our estimate of the server's time was too old, as after a
    freeze, the answer's time counts. The request may have taken any part of the time between.
    """
    return tuple.__new__(Reply, (True, record, stamp if answer.date is None else max(stamp, answer.date)))


def page(answer: ServiceAnswer) -> tuple[list[Item], Item | None]:
    """Return the items of a scan's page, and where the next page starts."""
    items = _body(answer).get("Items", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _shapeless("Items")
    return items, member(answer, "LastEvaluatedKey")


def member(answer: ServiceAnswer, name: str) -> Item | None:
    """Return an answer's member, which is an item or a key, or None if there is none.

    Raises:
        StoreError: it is something else. Transient: such an answer counts as lost.
    """
    value = _body(answer).get(name)
    if value is not None and not isinstance(value, dict):
        raise _shapeless(name)
    return value or None


def apart(call: Call, answer: ServiceAnswer | StoreError) -> list[ServiceAnswer | StoreError]:
    """Return what a batch has answered to each of its statements."""
    count = len(call.body["Statements"])  # type: ignore[arg-type]  # a list
    if isinstance(answer, StoreError) or answer.status != 200:
        return [answer] * count
    replies = answer.body.get("Responses") if isinstance(answer.body, dict) else None
    if not isinstance(replies, list) or len(replies) != count or {*map(type, replies)} != {dict}:
        return [answer._replace(status=500, body={"__type": "no sense"})] * count
    rest = answer[2:]
    return [_refused(answer, one) if "Error" in one else ServiceAnswer(200, one, *rest) for one in replies]


def _refused(answer: ServiceAnswer, response: Mapping[str, Any]) -> ServiceAnswer:
    error = response["Error"] if isinstance(response["Error"], Mapping) else {}
    return answer._replace(status=400, body={"__type": error.get("Code") or "no code", "message": error.get("Message")})


def _body(answer: ServiceAnswer) -> Mapping[str, object]:
    if not isinstance(answer.body, dict):
        raise _shapeless("members")
    return answer.body


def _shapeless(name: str) -> StoreError:
    return StoreError(f"an answer of DynamoDB makes no sense: its {name} do not fit the request", transient=True)


def units(answer: ServiceAnswer) -> float | None:
    """Return the capacity units that a request consumed, summed over tables; None if the answer does not say."""
    body = answer.body
    consumed = body.get("ConsumedCapacity") if isinstance(body, Mapping) else None
    if consumed is None:
        return None
    return sum(float(one["CapacityUnits"]) for one in (consumed if isinstance(consumed, list) else [consumed]))


def name_of(call: Call | ObjectCall) -> str:
    """Return what a call does, as IAM names it."""
    return f"dynamodb:{call.action}" if isinstance(call, Call) else f"s3:{call.method.title()}Object"


def reasons_of(answer: ServiceAnswer) -> list[Mapping[str, object]]:
    """Return why a transaction was cancelled, one reason for each of its writes."""
    return answer.body.get("CancellationReasons") or []
