"""Hears when busy keys change, by LISTEN, on one connection for all waiters of a ledger in this process.

NOTIFY makes commits wait for each other, so a claim that ends notifies only if somebody waits for its key. A listener says that
it waits by an advisory lock on a hash of the key, shared with other listeners; it goes with the connection. A claim that ends
tries the same lock for itself until its commit. If it gets the lock, nobody waits. If the listener cannot get it, a claim is
just ending. So no change is missed between a waiter's look and its wait (statements.py has the other half).
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from selectors import EVENT_READ
from typing import Any, Final

from onceward.core.clock import boottime
from onceward.observe.logs import logger
from onceward.stores.lanes.limits import Selector
from onceward.stores.postgres.cursors import Connection, cursor_of, fetch
from onceward.stores.postgres.statements import CHANNEL, lock_number

# Seconds between two looks. A claim that an operator or an earlier version ends notifies nobody. A batch can miss a waiter who
# comes right before its commit.
LONGEST: Final = 0.5
MOST: Final = 100  # keys that a process listens to: the locks of a server fill a table that all its clients share
LINGER: Final = 2.0  # seconds for which a key is listened to after its last waiter
IDLE: Final = 10.0  # seconds without a key after which the connection is closed
DEAF: Final = 30.0  # seconds after a failure in which nobody listens
_FRESH: Final = 0.1  # seconds after a change in which waiters who come can have seen what was before it,
_SOON: Final = 0.02  # so they look again after so many
_LISTEN: Final = f"LISTEN {CHANNEL}"
_LOCK: Final = f"SELECT {lock_number('$1::text')}, pg_try_advisory_lock_shared({lock_number('$1::text')})"
_UNLOCK: Final = "SELECT pg_advisory_unlock_shared($1::bigint)"

Wake = Callable[[], object]


class _Key:
    """A key that is waited for.

    Attributes:
        number: the hash by which notifications name it; None until it is listened to.
        wakes: how to wake those who wait now.
        changed_at: when its last change was heard.
        used_at: when somebody waited for it last.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.wakes: list[Wake] = []
        self.changed_at = -1.0
        self.used_at = boottime()


class Ear:
    """Waits for changes of keys.

    Args:
        conninfo: libpq's connection string.
        timeout: seconds for one statement.
    """

    def __init__(self, conninfo: str, timeout: float) -> None:
        self._conninfo = conninfo
        self._timeout = timeout
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler can come in
        self._keys: dict[str, _Key] = {}
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None
        self._deaf_until = 0.0
        self._closed = False

    def run(self, request: Any, _: object) -> bool:
        """Wait until a key may have changed, at most so many seconds. Return False at once if nobody can listen."""
        key, event = request.key, threading.Event()
        wake = event.set
        try:
            longest = self._enter(key, wake)
            if longest is None:
                return False
            event.wait(min(request.most, longest))
        finally:  # also if an interrupt comes between the two
            self._leave(key, wake)
        return True

    async def run_async(self, request: Any, _: object) -> bool:
        """As :meth:`run`, for a coroutine."""
        key, event, loop = request.key, asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

        try:
            longest = self._enter(key, wake)
            if longest is None:
                return False
            with contextlib.suppress(TimeoutError):
                # wait_for() of Python 3.11 can swallow a cancellation
                async with asyncio.timeout(min(request.most, longest)):
                    await event.wait()
        finally:
            self._leave(key, wake)
        return True

    def close(self) -> None:
        """Stop listening; those who wait look at once. The next wait begins anew."""
        if os.getpid() == self._process:
            with self._lock:
                keys, self._keys = self._keys, {}
                self._closed = True
                self._poke()
            for one in keys.values():
                _wake(one)

    def _enter(self, key: str, wake: Wake) -> float | None:
        """Begin to wait, and return how long at most. A key that is new wakes its waiters as soon as it is listened to."""
        if os.getpid() != self._process:
            self._reset()  # the parent's thread and connection stay the parent's
        with self._lock:
            now = boottime()
            if now < self._deaf_until:
                return None
            self._closed = False
            entry = self._keys.get(key)
            if entry is None:
                if len(self._keys) >= MOST or not self._listens():
                    return None
                entry = self._keys[key] = _Key()
            entry.used_at = now
            entry.wakes.append(wake)
            return _SOON if now - entry.changed_at < _FRESH else LONGEST

    def _leave(self, key: str, wake: Wake) -> None:
        with self._lock:
            entry = self._keys.get(key)
            if entry is not None and wake in entry.wakes:
                entry.wakes.remove(wake)
                entry.used_at = boottime()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _listens(self) -> bool:
        """Start the thread, or tell it of a new key. Return False if there is none."""
        if self._thread is not None:
            self._poke()
            return True
        try:
            pipe = os.pipe()
        except OSError:  # no more descriptors
            return False
        os.set_blocking(pipe[1], False)
        thread = threading.Thread(target=self._run, args=pipe, name="onceward-listener", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter exits
            self._end(*pipe)
            return False
        self._thread, self._pipe = thread, pipe
        return True

    def _poke(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], b".")

    def _end(self, *ends: int) -> None:
        self._thread = self._pipe = None
        for end in ends:
            os.close(end)

    def _run(self, poke: int, poked: int) -> None:
        connection: Connection | None = None
        try:
            held: dict[int, _Key] = {}
            connection = self._open(held)
            ready = Selector()
            for end in (connection.fileno(), poke):
                ready.register(end, EVENT_READ)
            quiet_at = boottime() + IDLE
            while True:
                quiet_at = self._sort(connection, held, quiet_at)
                _hear(connection, held)  # what came with the answers
                with self._lock:
                    if not self._keys and (self._closed or boottime() >= quiet_at):
                        return
                    is_ending = any(one.number is None for one in self._keys.values())
                if any(one.fd == poke for one, _ in ready.select(_SOON if is_ending else LINGER / 2)):
                    os.read(poke, 4096)
                _hear(connection, held)
        except Exception as error:  # the waiters look again and again instead
            logger().info("waiters poll, because LISTEN does not work here: %s", error)
            self._deaf_until = boottime() + DEAF
        finally:
            with self._lock:
                keys, self._keys = self._keys, {}
                self._end(poke, poked)
            for one in keys.values():
                _wake(one)
            if connection is not None:
                connection.close()

    def _open(self, held: dict[int, _Key]) -> Connection:
        connection = Connection.connect(self._conninfo, autocommit=True)
        connection.seconds = self._timeout
        ((pid,),) = fetch(cursor_of(connection), "SELECT pg_backend_pid()", (), prepare=False)
        if pid != connection.info.backend_pid:
            connection.close()
            raise OSError("a pooler stands between here and the server, and can move a session to another connection")
        connection.add_notify_handler(lambda notify: _note(held, notify.channel, notify.payload))
        fetch(cursor_of(connection), _LISTEN, (), prepare=False)
        return connection

    def _sort(self, connection: Connection, held: dict[int, _Key], quiet_at: float) -> float:
        """Listen to keys that are new, and no more to those for which nobody waits. Return when to end without any."""
        now, cursor = boottime(), cursor_of(connection)
        with self._lock:
            over = [key for key, one in self._keys.items() if not one.wakes and now - one.used_at > LINGER]
            for key in over:
                del self._keys[key]
            current = set(self._keys.values())
            new = [(key, one) for key, one in self._keys.items() if one.number is None]
        for number in [number for number, one in held.items() if one not in current]:
            fetch(cursor, _UNLOCK, (str(number),), prepare=False)
            del held[number]
        for key, one in new:
            ((number, got),) = fetch(cursor, _LOCK, (key,), prepare=False)
            if got:  # else its claim is just ending
                held[number] = one
                one.number = number
                _wake(one)
        return now + IDLE if current else quiet_at


def _hear(connection: Connection, held: dict[int, _Key]) -> None:
    """Read what came without a statement."""
    connection.pgconn.consume_input()
    while (notify := connection.pgconn.notifies()) is not None:
        _note(held, notify.relname.decode(), notify.extra.decode())


def _note(held: dict[int, _Key], channel: str, number: str) -> None:
    one = held.get(int(number)) if channel == CHANNEL else None
    if one is not None:
        one.changed_at = boottime()
        _wake(one)


def _wake(one: _Key) -> None:
    for wake in list(one.wakes):
        wake()
