"""The embedded ledger: one SQLite file, shared by any number of threads, event loops and processes on one host.

Reads go to one connection and never wait for a writer (WAL). Writes go to another, one transaction at a time: whoever
holds the lock commits for all who queue behind it, so that a hundred threads share one fsync instead of paying for a
hundred. Coroutines hand their writes to one thread, which does the same, and never block their loop on the disk.
"""

import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import SplitResult

from onceward.core.clock import Clock
from onceward.core.drive import Steps
from onceward.core.record import Record, Reply, Write
from onceward.errors import StoreError
from onceward.stores import sqlite_async
from onceward.stores.contract import MORE, Page, Purged
from onceward.stores.sqlite_clock import RESOLUTION
from onceward.stores.sqlite_file import SqliteFile, translated
from onceward.stores.sqlite_requests import Delete, Each, Insert, Load, Purge, Request, Scan, Swap, find

# What a request may fail with: what SQLite raises, and what its driver raises for values that it cannot store. All else is
# an interrupt.
_OWN = (sqlite3.Error, StoreError, UnicodeError, OverflowError)

PURGE_EVERY, PURGE_LIMIT = 32, 64  # every so many commits purge so many rows; the first of a process does, too


class Job:
    """A write that waits for its transaction. Whoever has ``looked`` for the key to be absent spares the commit that."""

    looked = False
    done = False
    reply: object = None
    error: Exception | None = None

    def __init__(self, request: Request) -> None:
        self.request = request


class SqliteStore:
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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 5.0,
        synchronous: str = "FULL",
        clock: Clock | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))  # noqa: PTH100 - pathlib costs 10 ms of a cold start
        # What has a meaning in a URL is written so that it has none; urllib.parse takes 5 ms of a cold start.
        self.url = "sqlite:///" + self.path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        self._file = SqliteFile(self.path, timeout, synchronous, clock)
        self._queue: deque[Job] = deque()
        self._commits = 0
        self._thread: sqlite_async.Writer | None = None
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        _watch_forks(self)
        weakref.finalize(self, _close, self._file, self._reading, self._writing)

    # --- the verbs ------------------------------------------------------------------------------------------------

    def insert(self, write: Write) -> Steps[Reply]:
        """Write if the key is absent."""
        reply: Reply = yield Insert(write)
        return reply

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        """Write if the record is still the version seen."""
        reply: Reply = yield Swap(write, seen)
        return reply

    def load(self, key: str) -> Steps[Reply]:
        """Read one record."""
        reply: Reply = yield Load(key)
        return reply

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Reply]]:
        """Insert all in one transaction."""
        reply: list[Reply] = yield Each([Insert(write) for write in writes])
        return reply

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Reply]]:
        """Swap all in one transaction."""
        reply: list[Reply] = yield Each([Swap(write, seen) for write, seen in pairs])
        return reply

    def scan(self, prefix: str, after: str | None, limit: int) -> Steps[Page]:
        """Read records in the order of their keys."""
        reply: Page = yield Scan(prefix, after, limit)
        return reply

    def delete(self, seen: Record) -> Steps[Reply]:
        """Delete if the record is still the version seen."""
        reply: Reply = yield Delete(seen)
        return reply

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:  # noqa: ARG002 - an index finds them
        """Delete expired records, the longest expired first."""
        gone: int = yield Purge(limit)
        return Purged(gone, MORE if gone == limit else None)

    # --- the exchange ---------------------------------------------------------------------------------------------

    def exchange(self, request: object) -> object:
        """Run one request: a read at once, a write in the next transaction."""
        asked: Request = request  # type: ignore[assignment]  # the verbs yield nothing else
        if not asked.writes:
            return self._read(asked.run)
        # While somebody commits, an insert looks for its key on the other connection; else the commit itself looks.
        job = Job(asked)
        if asked.absent is not None and self._writing.locked():
            if (held := self._look(asked.absent)) is not None:
                return held
            job.looked = True
        self._queue.append(job)
        with self._writing:
            if not job.done:
                self._commit()
        return job.reply if job.done and job.error is None else self._answer(job)

    async def exchange_async(self, request: object) -> object:
        """Run one request: a read at once, for it never waits; a write in the store's writer thread."""
        asked: Request = request  # type: ignore[assignment]  # the verbs yield nothing else
        if not self._file.is_open:  # opening may have to make the schema, and to wait for it
            await sqlite_async.in_thread(lambda: self._read(lambda _connection, now: now))
        if not asked.writes:
            return self._read(asked.run)
        job = Job(asked)
        if asked.absent is not None:
            if (held := self._look(asked.absent)) is not None:
                return held
            job.looked = True
        with self._reading:
            if self._thread is None:
                self._thread = sqlite_async.Writer(self)
            done = self._thread.put(job)
        await done
        return self._answer(job)

    def write(self, jobs: Sequence[Job]) -> None:
        """Commit ``jobs`` and whatever else is queued; their replies or errors are in them afterwards."""
        self._queue.extend(jobs)
        with self._writing:
            while self._queue:
                self._commit()

    def _answer(self, job: Job) -> object:
        if job.error is not None:
            raise job.error
        if not job.done:  # the thread that took it from the queue was interrupted at that very moment
            raise StoreError(f"ledger {self.path}: the write was interrupted", transient=True)
        return job.reply

    def _look(self, key: str) -> Reply | None:
        reply = cast("Reply", self._read(Load(key).run))
        return None if reply.record is None else reply

    def _read(self, run: Callable[[sqlite3.Connection, float], object]) -> object:
        with self._reading:
            try:
                return run(self._file.reader(), self._file.now())
            except BaseException as error:
                self._file.mend_reader(error)
                if not isinstance(error, _OWN):
                    raise  # an interrupt
                raise self._failure(error) from error

    def _commit(self) -> None:
        """Commit all that is queued in one transaction. The caller holds the write lock."""
        jobs: list[Job] = []
        try:
            while self._queue:
                jobs.append(self._queue.popleft())
            connection = self._file.writer()
            alone = jobs[0].request if len(jobs) == 1 else None
            if alone and alone.absent is not None and not jobs[0].looked and (held := find(connection, alone.absent)):
                jobs[0].reply = Reply(False, held, self._file.now())
                return  # a duplicate, which needs no write
            purge = self._commits % PURGE_EVERY == 0
            self._commits += 1
            if alone and not alone.many and not purge:
                jobs[0].reply = alone.run(connection, self._file.now())  # a transaction of its own
            else:
                self._transact(connection, jobs, purge)
        except BaseException as error:
            for job in jobs:
                job.error = self._failure(error)
            self._file.mend_writer(error)
            if not isinstance(error, _OWN):
                raise  # an interrupt, such as a time limit
        finally:
            for job in jobs:
                job.done = True

    def _failure(self, error: BaseException) -> Exception:
        """Return an error of one job's own: several threads may raise it at once."""
        if isinstance(error, sqlite3.Error):
            failure = translated(error, self.path)
        elif isinstance(error, StoreError):
            failure = StoreError(str(error), transient=error.transient)
        elif isinstance(error, _OWN):
            failure = StoreError(f"ledger {self.path}: {error!r}")
        else:
            # Nobody can say what was written before the interrupt, which is what a lost reply means.
            failure = StoreError(f"ledger {self.path}: the write was interrupted", transient=True)
        failure.__cause__ = error
        return failure

    def _transact(self, connection: sqlite3.Connection, jobs: list[Job], purge: bool) -> None:
        connection.execute("BEGIN IMMEDIATE")
        now = self._file.now()
        for job in jobs:
            job.reply = job.request.run(connection, now)
        if purge:
            Purge(PURGE_LIMIT).run(connection, now)
        connection.execute("COMMIT")

    # --- life -----------------------------------------------------------------------------------------------------

    def within(self, connection: sqlite3.Connection) -> "Within":
        """Return an exchange that runs every request inside the transaction open on ``connection``.

        Raises:
            ValueError: the connection's main database is not this ledger's file.
        """
        self._read(lambda _connection, now: now)  # makes the schema and sets the clock, on first use
        self._file.check_same(connection)
        return Within(connection, self._file.now)

    def close(self) -> None:
        """Close both connections and end the writer thread; the next use opens them again."""
        with self._reading, self._writing:
            if self._thread is not None:
                self._thread.stop()
                self._thread = None
            self._file.close()

    def _before_fork(self) -> None:
        # An SQLite connection must not be carried across a fork, not even to be closed there
        # (sqlite.org/howtocorrupt.html, 2.6), so there is none at the moment of forking.
        self._reading.acquire()
        self._writing.acquire()
        self._file.close()

    def _after_fork(self) -> None:
        self._writing.release()
        self._reading.release()

    def _after_fork_in_child(self) -> None:
        self._queue.clear()
        self._thread = None  # threads stay behind in the parent, and nobody but the forking one is here to hold a lock
        self._after_fork()


class Within:
    """Exchanges inside a transaction that somebody else opened and will end."""

    def __init__(self, connection: sqlite3.Connection, now: Clock) -> None:
        self._connection = connection
        self._now = now

    def exchange(self, request: object) -> object:
        """Run one request on the connection."""
        try:
            asked: Request = request  # type: ignore[assignment]  # as above
            return asked.run(self._connection, self._now())
        except sqlite3.Error as error:
            raise translated(error, "the transaction's connection") from error

    async def exchange_async(self, request: object) -> object:
        """Run one request on the connection."""
        return self.exchange(request)


def open_url(parts: SplitResult, options: dict[str, str]) -> SqliteStore:
    """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    Raises:
        ValueError: the URL has a host, no path, or an option other than ``timeout`` and ``synchronous``.
    """
    from urllib.parse import unquote  # noqa: PLC0415 - only for those who open by URL

    url = parts.geturl()
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise ValueError(
            f"{url!r}: write sqlite:///relative/path.db or sqlite:////absolute/path.db (three or four slashes)"
        )
    if path == ":memory:":
        raise ValueError(f"{url!r}: for a ledger in memory, use memory:")
    unknown = options.keys() - {"timeout", "synchronous"}
    if unknown:
        raise ValueError(f"{url!r}: unknown option {', '.join(sorted(unknown))}; there are timeout and synchronous")
    try:
        timeout = float(options.get("timeout", "5"))
    except ValueError:
        raise ValueError(f"{url!r}: timeout must be a number of seconds") from None
    return SqliteStore(path, timeout=timeout, synchronous=options.get("synchronous", "FULL").upper())


def _close(file: SqliteFile, *locks: threading.Lock) -> None:
    """Close the connections of a store that is gone, also at exit, unless a daemon thread is using them for ever."""
    held = [lock for lock in locks if lock.acquire(timeout=1)]
    if len(held) == len(locks):
        file.close()
    for lock in held:
        lock.release()


# --- forks --------------------------------------------------------------------------------------------------------


def _watch_forks(store: SqliteStore) -> None:
    """Call the store around every fork of this process, for as long as the store lives."""
    if not hasattr(os, "register_at_fork"):
        return
    alive = weakref.ref(store)

    def call(method: Callable[[SqliteStore], None]) -> Callable[[], None]:
        def hook() -> None:
            if (still := alive()) is not None:
                method(still)

        return hook

    os.register_at_fork(
        before=call(SqliteStore._before_fork),  # noqa: SLF001 - this module's own
        after_in_parent=call(SqliteStore._after_fork),  # noqa: SLF001 - as above
        after_in_child=call(SqliteStore._after_fork_in_child),  # noqa: SLF001 - as above
    )
