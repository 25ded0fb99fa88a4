"""The embedded ledger: one SQLite file, shared by any number of threads, event loops and processes on one host.

Reads use one connection and never wait for a writer (WAL). Writes use another, one transaction at a time: the thread that
holds the lock commits for all that queue, so a hundred threads share one fsync. Coroutines pass their writes to one thread,
which does the same, so the disk never blocks their loop.
"""

import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onceward.core.clock import Clock
from onceward.errors import StoreError
from onceward.stores.contract import DamagedRecord
from onceward.stores.locks import Forked, owns, reentered, watch_forks
from onceward.stores.observed import Observed
from onceward.stores.sqlite.clock import MARK, MARK_EVERY
from onceward.stores.sqlite.file import SqliteFile, translated
from onceward.stores.sqlite.place import CHECK_EVERY
from onceward.stores.sqlite.requests import SqlRequest, load, purge
from onceward.stores.sqlite.writer import Job, Writer

if TYPE_CHECKING:
    from threading import RLock  # a class to the type checker, a function at run time
# A request fails with SQLite's errors, or the driver's for values that it cannot store. Anything else is an interrupt.
_OWN = (sqlite3.Error, StoreError, UnicodeError, OverflowError)

_OPEN = SqlRequest(partial(load, ""), writes=False)  # a read that opens the file
_PATIENCE = 30.0  # seconds that a fork waits for other threads' requests to this ledger
PURGE_EVERY, PURGE_LIMIT = 32, 64  # purge up to 64 rows in every 32nd commit, and in a process's first


class SqliteExchange(Observed, Forked):
    """Carries requests to the file and the replies back. For its arguments, see :class:`SqliteStore`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 5.0,
        synchronous: str = "FULL",
        clock: Clock | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        # Quoted by hand: urllib.parse takes 5 ms of a cold start.
        self.url = "sqlite:///" + self.path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        self._file = SqliteFile(self.path, timeout, synchronous, clock)
        self._queue: deque[Job] = deque()
        self._commits = 0
        self._thread: Writer | None = None
        self._committing = False  # a hint only
        self._forkers: set[int] = set()  # the threads that fork, and take the locks for it
        self._process = os.getpid()
        self._make_locks()
        watch_forks(self)

    def _make_locks(self) -> None:
        self._reading = threading.RLock()
        self._writing = threading.RLock()
        self._is_writing = owns(self._writing)
        self._starting = threading.RLock()  # never held for long, so a coroutine may wait for it
        self._locks = (self._writing, self._reading, self._starting)
        weakref.finalize(self, _close, self._file, *self._locks)

    def action(self, request: Any) -> str:
        return str(request.run.func.__name__)

    def exchange(self, request: Any) -> object:
        """Run one request: a read at once, a write in the next transaction."""
        if not request.writes:
            return self._read(request.run)
        if self._is_writing():
            raise reentered(self.path)
        # While another thread commits, an insert checks its key on the read connection. Otherwise the commit checks it.
        job = Job(request)
        if request.look is not None and self._committing:
            if (reply := self._read(request.look)) is not None:
                return reply
            job.looked = True
        self._queue.append(job)
        with self._writing:
            if not job.done:
                self._commit()
        return job.reply if job.done and job.error is None else self._answer(job)

    async def exchange_async(self, request: Any) -> object:
        """Run one request: a read at once (it never waits), a write in the store's writer thread."""
        if not self._file.is_open:  # opening can make the schema, and wait for the file
            await self._in_thread(Job(_OPEN))
        if not request.writes:
            return self._read(request.run)
        job = Job(request)
        if request.look is not None:
            if (reply := self._read(request.look)) is not None:
                return reply
            job.looked = True
        return await self._in_thread(job)

    async def _in_thread(self, job: Job) -> object:
        with self._starting:
            if self._thread is None:
                self._thread = Writer(self)
            done = self._thread.put(job)
        await done
        return self._answer(job)

    def write(self, jobs: Sequence[Job]) -> None:
        """Open the file, and commit ``jobs`` and all that is queued. Afterwards the jobs hold their replies or errors."""
        if not self._file.is_open:
            self._open(jobs)
        self._queue.extend(job for job in jobs if not job.done)
        if self._is_writing():
            raise reentered(self.path)
        with self._writing:
            while self._queue:
                self._commit()

    def _answer(self, job: Job) -> object:
        if job.error is not None:
            raise job.error
        if not job.done:  # an interrupt stopped the thread that took it from the queue
            raise StoreError(f"ledger {self.path}: the write was interrupted", transient=True)
        return job.reply

    def _open(self, jobs: Sequence[Job]) -> None:
        error: StoreError | None = None
        try:
            self._read(_OPEN.run)
        except StoreError as raised:
            error = raised
        for job in jobs:
            if error is not None:
                job.error = self._failure(error)
            job.done = error is not None or not job.request.writes

    def _read(self, run: Callable[[sqlite3.Connection, float], object]) -> object:
        with self._reading:
            try:
                connection, now = self._file.reader(), self._file.now()
                if now - self._file.checked > CHECK_EVERY:
                    self._file.check_place(now)
                reply = run(connection, now)
            except BaseException as error:
                self._file.fix_reader(error)
                if not isinstance(error, _OWN):
                    raise  # an interrupt
                raise self._failure(error) from error
        return reply

    def _commit(self) -> None:
        """Commit all that is queued in one transaction. The caller holds the write lock."""
        jobs: list[Job] = []
        try:
            self._committing = True
            while self._queue:
                jobs.append(self._queue.popleft())
            connection = self._file.writer()
            now = self._file.now()
            if now - self._file.checked > CHECK_EVERY:
                self._file.check_place(now)
            alone = jobs[0].request if len(jobs) == 1 else None
            if alone and alone.look is not None and not jobs[0].looked and (reply := alone.look(connection, now)):
                jobs[0].reply = reply
                return  # a duplicate, which needs no write
            purging = self._commits % PURGE_EVERY == 0
            self._commits += 1
            if alone and not alone.many and not purging and now - self._file.marked < MARK_EVERY:
                jobs[0].reply = alone.run(connection, now)  # a transaction of its own
            else:
                self._transact(connection, jobs, purging=purging)
            if purging and self._file.is_behind() and self._reading.acquire(blocking=False):
                try:
                    self._file.close()  # the next process that opens it can set its clock
                finally:
                    self._reading.release()
        except BaseException as error:
            for job in jobs:
                job.error = self._failure(error)
            self._file.fix_writer(error)
            if not isinstance(error, _OWN):
                raise  # an interrupt, such as a time limit
        finally:
            self._committing = False
            for job in jobs:
                job.done = True

    def _failure(self, error: BaseException) -> Exception:
        """Return a new error for one job: several threads can raise theirs at once."""
        if isinstance(error, sqlite3.Error):
            failure = self._file.severed() or translated(error, self.path)
        elif isinstance(error, DamagedRecord):
            failure = DamagedRecord(str(error), error.damaged)
        elif isinstance(error, StoreError):
            failure = StoreError(str(error), transient=error.transient)
        elif isinstance(error, _OWN):
            failure = StoreError(f"ledger {self.path}: {error!r}")
        else:
            # What was written before the interrupt is unknown, as with a lost reply.
            failure = StoreError(f"ledger {self.path}: the write was interrupted", transient=True)
        failure.__cause__ = error
        return failure

    def _transact(self, connection: sqlite3.Connection, jobs: list[Job], *, purging: bool) -> None:
        connection.execute("BEGIN IMMEDIATE")
        now = self._file.now()
        if now - self._file.marked >= MARK_EVERY:
            connection.execute(MARK, (now,))
        for job in jobs:
            try:
                job.reply = job.request.run(connection, now)
            except StoreError as error:  # a damaged record, on which nothing was written
                job.error = self._failure(error)
        if purging:
            purge(PURGE_LIMIT, connection, now)
        connection.execute("COMMIT")
        if now - self._file.marked >= MARK_EVERY:
            self._file.marked = now

    def opened(self) -> SqliteFile:
        """Return the file, with its schema made and its clock set."""
        self._read(_OPEN.run)
        return self._file

    def close(self) -> None:
        if any(owns(lock)() for lock in self._locks):
            raise reentered(self.path)
        with self._writing, self._reading, self._starting:
            if self._thread is not None:
                self._thread.stop()
                self._thread = None
            self._file.forget()

    def before_fork(self) -> None:
        """Close the connections, and keep other threads from opening them.

        No SQLite connection must cross a fork, not even to be closed there (sqlite.org/howtocorrupt.html, 2.6). A thread that forks
        in the middle of a request, in a signal handler, needs them: then the child cannot use the ledger.
        """
        if any(owns(lock)() for lock in self._locks):
            return
        self._forkers.add(threading.get_ident())
        if _acquire(self._locks, _PATIENCE):
            self._file.close()

    def after_fork_in_parent(self) -> None:
        """Let the other threads go on."""
        if threading.get_ident() in self._forkers:
            _release([lock for lock in self._locks if owns(lock)()])
            self._forkers.discard(threading.get_ident())

    def after_fork_in_child(self) -> None:
        """Forget the parent's requests and its writer thread, which stay in the parent."""
        if self._process == os.getpid():
            return
        self._queue.clear()
        self._thread = None
        is_prepared = threading.get_ident() in self._forkers and all(owns(lock)() for lock in self._locks)
        if is_prepared and self._file.is_closed:
            self.after_fork_in_parent()
        else:
            self._file.sever()
            self._make_locks()
        self._forkers.clear()
        self._process = os.getpid()


def _close(file: SqliteFile, *locks: "RLock") -> None:
    """Close a dead store's connections, also at exit. Gives up if a daemon thread holds a lock for ever."""
    if _acquire(locks, 1.0):
        try:
            file.close()
        finally:
            _release(locks)


def _acquire(locks: Sequence["RLock"], patience: float) -> bool:
    """Acquire all locks, or none. ``patience`` is the seconds to wait for each."""
    acquired: list[RLock] = []
    try:
        for lock in locks:
            if not lock.acquire(timeout=patience):
                break
            acquired.append(lock)
    finally:
        if len(acquired) < len(locks):
            _release(acquired)
    return len(acquired) == len(locks)


def _release(locks: Sequence["RLock"]) -> None:
    for lock in reversed(locks):
        lock.release()
