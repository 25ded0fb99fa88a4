"""The ledger in a DynamoDB table: each verb is one conditional write, judged by DynamoDB's own clock.

A refused write returns the item that caused it, so a duplicate costs one request. Leases are stamped with the latest time
that the server's clock may show and judged by the earliest (``clock.py``).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Steps
from onceward.core.protocol import is_known
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, DamagedRecord, Page, Polled, Purged
from onceward.stores.dynamodb import batch, blobs, faults
from onceward.stores.dynamodb.blobs import Blobs, is_large
from onceward.stores.dynamodb.items import COMPRESS_OVER, Item, Layout, reason
from onceward.stores.dynamodb.replies import member, page, won
from onceward.stores.dynamodb.requests import Body
from onceward.stores.dynamodb.table import DynamoTable
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of
from onceward.wire.wires import Wires

_SCANNED = 1000  # items that one page looks at, at most


class Sent(NamedTuple):
    """Writes as they were stamped at ``now``, the calls that they were sent with, and the answers to these."""

    records: list[Record]
    now: float
    calls: tuple[Call, ...]
    answers: "list[ServiceAnswer | StoreError]"


class DynamoStore(DynamoTable, Polled):
    """A ledger in a DynamoDB table. Make one with :func:`onceward.stores.dynamodb.open_table`, which explains the options.

    ``wires`` send the requests, and ``url`` names the ledger in messages (default ``dynamodb://TABLE``).
    """

    resolution = 1.0
    poll = 0.25
    capabilities: Mapping[str, str] = {
        "template": "onceward.stores.dynamodb.template:template",
        "due": "onceward.stores.dynamodb.due:due",
        "find": "onceward.stores.dynamodb.finding:find",
        "migrate": "onceward.stores.dynamodb.entering:migrate",
        "observe": "onceward.stores.observed:observe",
        "inspect": "onceward.stores.dynamodb.inspection:inspect",
        "outbox": "onceward.stores.dynamodb.due:outbox",
        "provision": "onceward.stores.dynamodb.create:provision",
        "survey": "onceward.stores.dynamodb.survey:survey",
        "trace": "onceward.stores.dynamodb.finding:trace",
        "transact": "onceward.stores.dynamodb.transact:committing",
    }

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
        super().__init__(table, wires, layout or Layout(), url or f"dynamodb://{table}", clock)
        self.may_batch = True
        self.max_result = (256 if blobs is None else 16 * 1024) * 1024  # an item has 400 KB in all
        self._blobs = blobs
        self._probe = probe

    def insert(self, write: Write) -> Steps[Reply]:
        if self._probe or not self.clock.known:
            seen = yield from self.look(write.key, consistent=False)
            if seen.record is not None:
                return seen
        return (yield from self._put(write, None))

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        return self._put(write, seen)

    def load(self, key: str) -> Steps[Reply]:
        return self.look(key, consistent=True)

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        return batch.write_many(self, [batch.Wanted(write, None) for write in writes])

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        return batch.write_many(self, [batch.Wanted(*pair) for pair in pairs])

    def scan(self, prefix: str, after: str | None, limit: int) -> Steps[Page]:
        """Read one page with one request, in DynamoDB's own order."""
        return (yield from self.read_page(self.requests.having(prefix), prefix, after, min(limit, _SCANNED)))

    def read_page(self, body: Body, prefix: str, after: str | None, limit: int | None) -> Steps[Page]:
        """Read one page of the items that a filter lets through. DynamoDB looks at ``limit`` items, or at 1 MB."""
        start = None if after is None else resumed(after)
        items, last = page((yield from self.ask(self.requests.scan(start, limit, body))))
        records, damaged = self._sorted(items)
        # DynamoDB's filter may let other keys through.
        records = [record for record in records if record.key.startswith(prefix)]
        damaged = [one for one in damaged if one.key.startswith(prefix)]
        return Page(records, token(last), self.clock.earliest(), tuple(damaged))

    def point(self, record: Record) -> str:
        """Return where a page goes on after this record."""
        return json.dumps(self.layout.key(record.key), separators=(",", ":"))

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        call = self.requests.delete(seen)
        answer = yield from self.heard(call, cast("ServiceAnswer", (yield call)))
        return (yield from self.reply(call, answer, seen if isinstance(seen, Record) else None, 0.0))

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete up to ``limit`` expired records of one page. DynamoDB's TTL also deletes them, within days."""
        yield from self.learn_time()
        start = None if after is None else resumed(after)
        now = float(math.floor(self.clock.earliest()))
        items, last = page((yield from self.ask(self.requests.scan(start, None, self.requests.expired(now)))))
        if len(items) > limit:
            items = items[:limit]
            last = {part.name: items[-1][part.name] for part in self.layout.parts} if items else start
        gone = 0
        records, damaged = self._sorted(items)
        records = [record for record in records if is_known(record)]  # a newer version may still need another
        for first in range(0, len(records), batch.STATEMENTS):
            calls = tuple(self.requests.delete(record) for record in records[first : first + batch.STATEMENTS])
            for one, deleted in zip(calls, (yield from self.ask_many(calls)), strict=True):
                try:
                    gone += (yield from self.reply(one, deleted, None, 0.0)).won
                except DamagedRecord as error:  # it was damaged since it was read
                    damaged.append(error.damaged)
        return Purged(gone, token(last), tuple(damaged))

    # --- for the modules beside ----------------------------------------------------------------------------------------

    def sent(self, wanted: Sequence[batch.Wanted], calls_of: Callable[[list[Item]], tuple[Call, ...]]) -> Steps[Sent]:
        """Stamp writes, send their calls in parallel, and return the answers and errors.

        If a signature was refused, do all of it once more: our estimate of the server's time was wrong, and so are the
        stamps. A write that was already made then meets itself.
        """
        for again in (True, False):
            records, items, now = yield from self.stamped(wanted)
            calls = calls_of(items)
            answers = yield from self.ask_many(calls, again=False)
            if not again or not any(isinstance(answer, ServiceAnswer) and self.may_renew(answer) for answer in answers):
                break
        return Sent(records, now, calls, answers)

    def refused(self, record: Record | None, item: Item | None, *, inserted: bool) -> Steps[Reply]:
        """Return the reply to a refused write of ``record``. ``item`` caused the refusal, if the answer has it."""
        if item:
            return Reply(False, self.read(item), self.clock.earliest())
        if inserted and record is not None:  # a record exists, but the server or a proxy did not send it
            return (yield from self.look(record.key, consistent=True))
        return Reply(False, None, self.clock.earliest())

    def stamped(self, wanted: Sequence[batch.Wanted]) -> Steps[tuple[list[Record], list[Item], float]]:
        """Return the records of writes stamped now, their items, and that time."""
        yield from self.learn_time()
        now = self.clock.latest()
        records, items = [], []
        for write, seen in wanted:
            record = _whole(write.at(now))
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
        if code_of(answer) != faults.REFUSED:
            raise self.failure(call, answer)
        return (yield from self.refused(record, member(answer, "Item"), inserted=inserted))

    def read(self, item: Item) -> Record:
        """Return an item as a record. A result in S3 is not fetched yet.

        Raises:
            DamagedRecord: it cannot be read.
        """
        layout = self.layout
        try:
            record = layout.record(item)
            kept = item.get(layout.names["result"])
            if kept is not None and "M" in kept and not layout.is_foreign(record):
                return record._replace(result=blobs.elsewhere(self, self._blobs, record, kept))
        except (StoreError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise self._damaged(item, error) from error
        return record

    def _damaged(self, item: Item, error: Exception) -> DamagedRecord:
        why = str(error) if isinstance(error, StoreError) else f"its item makes no sense ({reason(error)})"
        key = self.layout.key_in(item)
        return DamagedRecord(
            f"{key}: ledger {self.url} has a record of this key that cannot be read: {why}. To delete it, so that the next "
            "delivery runs, clear the key",
            Damaged(key, why, item),
        )

    def _sorted(self, items: Sequence[Item]) -> tuple[list[Record], list[Damaged]]:
        """Return items as records, and those that cannot be read."""
        records: list[Record] = []
        damaged: list[Damaged] = []
        for item in items:
            try:
                records.append(self.read(item))
            except DamagedRecord as error:
                damaged.append(error.damaged)
        return records, damaged

    def _put(self, write: Write, seen: Record | None, *, again: bool = True) -> Steps[Reply]:
        # Every delivery runs this: the plain case makes no list and no other generator.
        clock = self.clock
        if not clock.known or (write.result is not None and len(write.result) > COMPRESS_OVER):
            (record,), (item,), now = yield from self.stamped([batch.Wanted(write, seen)])
        else:
            now = clock.latest()
            record = _whole(write.at(now))
            item = self.layout.item(record, seen)
        call = self.requests.write(item, seen)
        answer: ServiceAnswer = yield call
        if answer.status == 200:
            clock.learn(answer)
            return won(record, answer, now)
        answer = yield from self.heard(call, answer, again=False)
        if again and self.may_renew(answer):  # as in sent()
            return (yield from self._put(write, seen, again=False))
        return (yield from self.reply(call, answer, record, now, inserted=seen is None))

    def look(self, key: str, *, consistent: bool) -> Steps[Reply]:
        """Read one record."""
        answer = yield from self.ask(self.requests.get(key, consistent=consistent))
        item = member(answer, "Item")
        return Reply(False, self.read(item) if item else None, self.clock.earliest())

    def _packed(self, record: Record, item: Item, seen: Record | None) -> Steps[tuple[Record, Item]]:
        """Return the record with a result as it can be stored, and its item."""
        name = self.layout.names["result"]
        if name not in item or not is_large(item[name], record.unsent):
            return record, item
        why = "a DynamoDB item has at most 400 KB; keep larger results in S3 with blobs='s3://bucket/prefix'"
        if self._blobs is not None:
            try:
                item[name] = yield from self._blobs.kept(self, record)
            except StoreError as error:
                why = f"its result could not be kept: {error}"  # a failure of S3 must not run the handler again
            else:
                return record, item
        record = record._replace(result=None, error=why)
        return record, self.layout.item(record, seen)


def _whole(record: Record) -> Record:
    """Round the expiry up, because DynamoDB's TTL needs whole seconds."""
    if record.expires_at is None or record.expires_at.is_integer():
        return record
    fields = (*record[:11], float(math.ceil(record.expires_at)), *record[12:])  # half of the time of _replace
    return tuple.__new__(Record, fields)


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
        raise StoreError(f"{after!r} is not where an earlier page of this ledger ended")
    return key
