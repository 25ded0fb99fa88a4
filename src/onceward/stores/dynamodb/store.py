"""The ledger in a DynamoDB table: each verb is one conditional write, judged by DynamoDB's own clock.

A refused write returns the item that caused it, so a duplicate costs one request. Leases are stamped with the latest time
that the server's clock may show and judged by the earliest (``clock.py``).

Of many writes, ``BatchExecuteStatement`` takes 25 and answers each separately. It says which writes were refused, but not which
records caused that: another one reads those. A write with another error is sent again alone. Without the right to use PartiQL,
single writes are sent in parallel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.protocol import is_known
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, DamagedRecord, Page, Polled, Purged, answer_of
from onceward.stores.dynamodb.blobs import is_large
from onceward.stores.dynamodb.items import COMPRESS_OVER, Item
from onceward.stores.dynamodb.table import REFUSED, DynamoTable, apart, member, page, resumed, token, won
from onceward.wire.calls import Call, ServiceAnswer, code_of

if TYPE_CHECKING:
    from onceward.core.selections import Selection

_LOST: Final = frozenset({REFUSED, "DuplicateItem"})
Change = tuple[Write, Record | None]  # one write, made only if the record is still the one seen, or absent if none was


# Writes as they were stamped, when, the calls that they were sent with, and the answers to these
Sent = tuple[list[Record], float, tuple[Call, ...], list[ServiceAnswer | StoreError]]


class DynamoStore(DynamoTable, Polled):
    """A ledger in a DynamoDB table. Make one with :func:`onceward.stores.dynamodb.open_table`, which explains the options.

    ``wires`` send the requests, and ``url`` names the ledger in messages (default ``dynamodb://TABLE``).
    """

    resolution = 1.0
    poll = 0.25
    capabilities: Mapping[str, str] = {
        "document": "onceward.stores.dynamodb.template:document",
        "observe": "onceward.stores.observed:observe",
        "inspect": "onceward.stores.dynamodb.inspection:inspect",
        "outbox": "onceward.stores.dynamodb.finding:outbox",
        "provision": "onceward.stores.dynamodb.create:provision",
        "transact": "onceward.stores.dynamodb.transact:committing",
    }

    def insert(self, write: Write) -> Steps[Reply]:
        return self._put(write, None)

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        return self._put(write, seen)

    def load(self, key: str) -> Steps[Reply]:
        return self.look(key, consistent=True)

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        return self.write_many([(write, None) for write in writes])

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        return self.write_many(pairs)

    def select(self, selection: "Selection", after: str | None, limit: int) -> Steps[Page]:
        """Read by an index what one has; of the rest, what a filter lets through, in DynamoDB's own order."""
        from onceward.stores.dynamodb.finding import select  # people and relays read; a cold start does not pay for it

        return select(self, selection, after, limit)

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        call = self.requests.delete(seen)
        answer = yield from self.learn_from(call, (yield call))
        return (yield from self.reply(call, answer, seen if isinstance(seen, Record) else None, 0.0))

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete up to ``limit`` expired records of one page. DynamoDB's TTL also deletes them, within days."""
        yield from self.learn_time()
        start = None if after is None else resumed(after)
        terms = self.requests.having("")
        terms.add(terms.compared(self.layout.expiry, "<=", float(math.floor(self.clock.earliest()))))
        items, last = page((yield from self.ask(self.requests.scan(start, limit, terms))))
        count = 0
        records, damaged = self.sorted_out(items)
        # A newer version may still need others.
        calls = tuple(self.requests.delete(record) for record in records if is_known(record))
        for one, deleted in zip(calls, (yield from self.ask_many(calls)), strict=True):
            try:
                count += (yield from self.reply(one, deleted, None, 0.0)).won
            except DamagedRecord as error:  # it was damaged since it was read
                damaged.append(error.damaged)
        return Purged(count, token(last), tuple(damaged))

    def _put(self, write: Write, seen: Record | None, *, again: bool = True) -> Steps[Reply]:
        # Every delivery runs this: the plain case makes no list and no other generator.
        clock = self.clock
        known = clock.known
        if seen is None and again and (self.probe or not known):
            found = yield from self.look(write.key, consistent=False)
            if found.record is not None:
                return found
        if not known or (write.result is not None and len(write.result) > COMPRESS_OVER):
            (record,), (item,), now = yield from self.stamp([(write, seen)])
        else:
            now = clock.latest()
            record = whole(write.at(now))
            item = self.layout.item(record, seen)
        call = self.requests.write(item, seen)
        answer: ServiceAnswer = yield call
        clock.learn(answer)
        if answer.status == 200:
            return won(record, answer, now)
        if code_of(answer) == REFUSED:
            return (yield from self.refusal(record, member(answer, "Item"), inserted=seen is None))
        if again and self.may_renew(answer):  # as in send()
            return (yield from self._put(write, seen, again=False))
        raise self.failure(call, answer)

    # --- what becomes of writes ------------------------------------------------------------------------------------

    def send(self, changes: Sequence[Change], calls_of: Callable[[list[Item]], tuple[Call, ...]]) -> Steps[Sent]:
        """Stamp writes, send their calls in parallel, and return the answers and errors.

        If a signature was refused, do all of it once more: our estimate of the server's time was wrong, and so are the
        stamps. A write that was already made then meets itself.
        """
        for again in (True, False):
            records, items, now = yield from self.stamp(changes)
            calls = calls_of(items)
            answers = yield from self.ask_many(calls, again=False)
            if not again or not any(isinstance(answer, ServiceAnswer) and self.may_renew(answer) for answer in answers):
                break
        return records, now, calls, answers

    def refusal(self, record: Record | None, item: Item | None, *, inserted: bool) -> Steps[Reply]:
        """Return the reply to a refused write of ``record``. ``item`` caused the refusal, if the answer has it."""
        if item:
            return Reply(False, self.read(item), self.clock.earliest())
        if inserted and record is not None:  # a record exists, but the server or a proxy did not send it
            return (yield from self.look(record.key, consistent=True))
        return Reply(False, None, self.clock.earliest())

    def stamp(self, changes: Sequence[Change]) -> Steps[tuple[list[Record], list[Item], float]]:
        """Return the records of writes stamped now, their items, and that time."""
        yield from self.learn_time()
        now = self.clock.latest()
        records, items = [], []
        for write, seen in changes:
            record = whole(write.at(now))
            item = self.layout.item(record, seen)
            if record.result is not None and len(record.result) > COMPRESS_OVER:
                record, item = yield from self._packed(record, item, seen)
            records.append(record)
            items.append(item)
        return records, items, now

    def reply(
        self,
        call: Call,
        answer: ServiceAnswer | StoreError,
        record: Record | None,
        now: float,
        *,
        inserted: bool = False,
    ) -> Steps[Reply]:
        """Return the reply in the answer to a conditional write of ``record``, stamped ``now``."""
        if isinstance(answer, StoreError):
            raise answer
        if answer.status == 200:
            return won(record, answer, now)
        if code_of(answer) != REFUSED:
            raise self.failure(call, answer)
        return (yield from self.refusal(record, member(answer, "Item"), inserted=inserted))

    def _packed(self, record: Record, item: Item, seen: Record | None) -> Steps[tuple[Record, Item]]:
        """Return the record with a result as it can be stored, and its item."""
        name = self.layout.names["result"]
        if name not in item or not is_large(item[name], record.unsent):
            return record, item
        why = "a DynamoDB item has at most 400 KB; keep larger results in S3 with blobs='s3://bucket/prefix'"
        if self.blobs is not None:
            try:
                item[name] = yield from self.blobs.put(self.ask, record)
            except StoreError as error:
                why = f"its result could not be kept: {error}"  # a failure of S3 must not run the handler again
            else:
                return record, item
        record = record._replace(result=None, error=why)
        return record, self.layout.item(record, seen)

    # --- many keys ------------------------------------------------------------------------------------------------

    def write_many(self, changes: Sequence[Change]) -> Steps[list[Answered]]:
        """Make each write independently. Return the replies in the same order, with an error for each that failed."""
        # A request can contain a key once, so a key's second write waits for the first one's answer.
        first: dict[str, int] = {}
        for number, (write, _) in enumerate(changes):
            first.setdefault(write.key, number)
        answers = yield from self._write_once([changes[number] for number in first.values()])
        if len(answers) == len(changes):
            return answers
        replies = dict(zip(first.values(), answers, strict=True))
        later = [number for number in range(len(changes)) if number not in replies]
        replies |= zip(later, (yield from self.write_many([changes[number] for number in later])), strict=True)
        return [replies[number] for number in range(len(changes))]

    def _write_once(self, changes: Sequence[Change], *, alone: bool = False) -> Steps[list[Answered]]:
        """Make writes of different keys. ``alone``: with a request for each, in parallel."""
        alone = alone or len(changes) == 1
        records, now, calls, sent = yield from self.send(changes, partial(self._calls, changes, alone))
        answers = (
            sent if alone else [one for call, answer in zip(calls, sent, strict=True) for one in apart(call, answer)]
        )
        replies: list[Answered | None] = []
        lost: dict[int, str] = {}
        for number, (answer, record) in enumerate(zip(answers, records, strict=True)):
            reply: Answered | None = None
            if isinstance(answer, StoreError):  # the callers' steps retry it
                reply = answer
            elif answer.status == 200:
                reply = won(record, answer, now)
            elif alone:
                refused = self.reply(calls[number], answer, record, 0.0, inserted=changes[number][1] is None)
                reply = yield from answer_of(refused)
            elif code_of(answer) in _LOST:
                lost[number] = record.key
            replies.append(reply)
        current = (yield from self.look_many(list(lost.values()))) if lost else {}
        others = [number for number, reply in enumerate(replies) if reply is None and number not in lost]
        again = (yield from self._write_once([changes[number] for number in others], alone=True)) if others else []
        rest = {number: current[key] for number, key in lost.items()} | dict(zip(others, again, strict=True))
        return [rest[number] if reply is None else reply for number, reply in enumerate(replies)]

    def _calls(self, changes: Sequence[Change], alone: bool, items: list[Item]) -> tuple[Call, ...]:
        requests = self.requests
        pairs = [(item, seen) for (_, seen), item in zip(changes, items, strict=True)]
        if alone:
            return tuple(requests.write(*pair) for pair in pairs)
        return requests.statements(
            [requests.inserting(item) if seen is None else requests.swapping(item, seen) for item, seen in pairs]
        )


def whole(record: Record) -> Record:
    """Round the expiry up, because DynamoDB's TTL needs whole seconds."""
    if record.expires_at is None or record.expires_at.is_integer():
        return record
    fields = (*record[:11], float(math.ceil(record.expires_at)), *record[12:])  # half of the time of _replace
    return tuple.__new__(Record, fields)
