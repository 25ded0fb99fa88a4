"""The ledger in a DynamoDB table: each verb is one conditional write, judged by DynamoDB's own clock.

A refused write returns the item that caused it, so a duplicate costs one request. Leases are stamped with the latest time
that the server's clock may show and judged by the earliest (``clock.py``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Steps
from onceward.core.protocol import is_known
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.core.selections import Selection
from onceward.stores.contract import Damaged, DamagedRecord, Page, Polled, Purged
from onceward.stores.dynamodb.blobs import Blobs
from onceward.stores.dynamodb.items import COMPRESS_OVER, Layout
from onceward.stores.dynamodb.replies import page, won
from onceward.stores.dynamodb.table import resumed, token
from onceward.stores.dynamodb.writer import DynamoWriter, whole
from onceward.wire.calls import ServiceAnswer
from onceward.wire.wires import Wires


class DynamoStore(DynamoWriter, Polled):
    """A ledger in a DynamoDB table. Make one with :func:`onceward.stores.dynamodb.open_table`, which explains the options.

    ``wires`` send the requests, and ``url`` names the ledger in messages (default ``dynamodb://TABLE``).
    """

    resolution = 1.0
    poll = 0.25
    capabilities: Mapping[str, str] = {
        "document": "onceward.stores.dynamodb.template:document",
        "migrate": "onceward.stores.dynamodb.indexes:migrate",
        "observe": "onceward.stores.observed:observe",
        "inspect": "onceward.stores.dynamodb.inspection:inspect",
        "outbox": "onceward.stores.dynamodb.indexes:outbox",
        "provision": "onceward.stores.dynamodb.create:provision",
        "survey": "onceward.stores.dynamodb.finding:survey",
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
        super().__init__(table, wires, layout or Layout(), url or f"dynamodb://{table}", clock, blobs)
        self.max_result = (256 if blobs is None else 16 * 1024) * 1024  # an item has 400 KB in all
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
        return self.write_many([(write, None) for write in writes])

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        return self.write_many(pairs)

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        """Read by an index what one has; of the rest, what a filter lets through, in DynamoDB's own order."""
        from onceward.stores.dynamodb.finding import select  # people and relays read; a cold start does not pay for it

        return select(self, selection, after, limit)

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        call = self.requests.delete(seen)
        answer = yield from self.heard(call, cast("ServiceAnswer", (yield call)))
        return (yield from self.reply(call, answer, seen if isinstance(seen, Record) else None, 0.0))

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete up to ``limit`` expired records of one page. DynamoDB's TTL also deletes them, within days."""
        yield from self.learn_time()
        start = None if after is None else resumed(after)
        terms = self.requests.having("")
        terms.add(terms.compared(self.layout.expiry, "<=", float(math.floor(self.clock.earliest()))))
        items, last = page((yield from self.ask(self.requests.scan(start, None, terms))))
        if len(items) > limit:
            items = items[:limit]
            last = {part.name: items[-1][part.name] for part in self.layout.parts} if items else start
        gone = 0
        records, damaged = self.sorted_out(items)
        # A newer version may still need others.
        calls = tuple(self.requests.delete(record) for record in records if is_known(record))
        for one, deleted in zip(calls, (yield from self.ask_many(calls)) if calls else (), strict=True):
            try:
                gone += (yield from self.reply(one, deleted, None, 0.0)).won
            except DamagedRecord as error:  # it was damaged since it was read
                damaged.append(error.damaged)
        return Purged(gone, token(last), tuple(damaged))

    def _put(self, write: Write, seen: Record | None, *, again: bool = True) -> Steps[Reply]:
        # Every delivery runs this: the plain case makes no list and no other generator.
        clock = self.clock
        if not clock.known or (write.result is not None and len(write.result) > COMPRESS_OVER):
            (record,), (item,), now = yield from self.stamped([(write, seen)])
        else:
            now = clock.latest()
            record = whole(write.at(now))
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
