"""The embedded ledger: one SQLite file, shared by any number of threads, event loops and processes on one host."""

from collections.abc import Mapping, Sequence
from functools import partial

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.core.selections import Selection
from onceward.stores.contract import MORE, Damaged, NoIndex, Page, Polled, Purged
from onceward.stores.sqlite import requests
from onceward.stores.sqlite.clock import RESOLUTION
from onceward.stores.sqlite.exchange import SqliteExchange
from onceward.stores.sqlite.requests import SqlRequest


class SqliteStore(SqliteExchange, Polled):
    """A ledger in an SQLite file (3.35 or newer).

    Args:
        path: the file; made, with its schema, on first use. Its folder must exist.
        timeout: seconds to wait while another process holds the file's write lock.
        synchronous: "FULL" survives a power cut; "NORMAL" is faster and may lose the last commits in one.
        clock: the ledger's clock in seconds; give one only in tests. The default is the host's own.
    """

    resolution = RESOLUTION
    poll = 0.04  # a waiter sees a result within 100 ms of its being recorded
    max_result = 256 * 1024
    capabilities: Mapping[str, str] = {
        "observe": "onceward.stores.observed:observe",
        "transaction": "onceward.stores.sqlite.session:join",
        **{
            name: f"onceward.stores.sqlite.inspection:{name}"
            for name in ("exists", "inspect", "migrate", "outbox", "provision", "survey", "template")
        },
    }

    def insert(self, write: Write) -> Steps[Reply]:
        reply: Reply = yield SqlRequest(partial(requests.insert, write), partial(requests.look, write))
        return reply

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        reply: Reply = yield SqlRequest(partial(requests.swap, write, seen))
        return reply

    def load(self, key: str) -> Steps[Reply]:
        reply: Reply = yield SqlRequest(partial(requests.load, key), writes=False)
        return reply

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert all in one transaction."""
        return _many([partial(requests.insert, write) for write in writes])

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap all in one transaction."""
        return _many([partial(requests.swap, write, seen) for write, seen in pairs])

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        from onceward.stores.sqlite.finding import select  # people and relays read; a cold start does not pay for it

        page: Page | None = yield SqlRequest(partial(select, selection, after, limit), writes=False)
        if page is None:
            raise NoIndex(
                f"ledger {self.path}: an earlier version made it without an index of chains: run `onceward migrate`"
            )
        return page

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        reply: Reply = yield SqlRequest(partial(requests.delete, seen))
        return reply

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        count: int = yield SqlRequest(partial(requests.purge, limit))
        return Purged(count, MORE if count == limit else None)


def _many(runs: "list[partial[Reply]]") -> Steps[list[Answered]]:
    replies: list[Answered] = yield SqlRequest(partial(requests.each, runs), many=True)
    return replies
