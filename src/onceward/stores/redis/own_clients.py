"""Clients of redis-py that are opened from a ledger's URL: one for blocking callers, and one for each event loop."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis import exceptions

from onceward.stores.redis.clients import Clients, Command
from onceward.stores.redis.held_connections import HeldConnections, HeldConnectionsAsync, Packed
from onceward.stores.redis.requests import Sendable, packed

_INHERITED: Final[list[object]] = []  # by a fork: to drop them would take them from the parent's event loop


class OwnClients(Clients):
    """Clients that are opened here: one for blocking callers, and one for each event loop.

    Args:
        make: makes a blocking client.
        make_async: makes one for coroutines.
        replicas: as for :class:`Clients`.
        disk: as for :class:`Clients`.
        timeout: as for :class:`Clients`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        make_async: Callable[[], Any],
        replicas: int,
        disk: bool,
        timeout: float,
    ) -> None:
        super().__init__(replicas, disk, timeout)
        self._make, self._make_async = make, make_async
        self._blocking: tuple[Any, HeldConnections | None] | None = None
        self._process = os.getpid()
        self._awaited: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()
        self._confirming = self._all_confirming()

    def mark(self, key: bytes) -> None:
        super().mark(key)
        self._confirming = self._all_confirming()

    def _all_confirming(self) -> Packed:
        return Packed(b"".join(map(packed, self._after)), len(self._after))

    def client(self) -> Any:
        return self._opened()[0]

    def _opened(self) -> tuple[Any, HeldConnections | None]:
        """Return the blocking client, and its connections unless it is a Cluster's."""
        if self._process != os.getpid():
            self._begin_anew()
        opened = self._blocking
        if opened is None:
            client = self._make()
            pool = getattr(client, "connection_pool", None)
            opened = self._blocking = client, None if pool is None else HeldConnections(pool, self._confirming)
        return opened

    def client_async(self) -> Any:
        return self._mine().client

    def _begin_anew(self) -> None:
        """Leave the connections of the process that this one was forked from to that one."""
        _INHERITED.append(dict(self._awaited))
        self._process, self._blocking, self._awaited = os.getpid(), None, WeakKeyDictionary()

    def _mine(self) -> "_OfLoop":
        """Return what belongs to the running event loop."""
        if self._process != os.getpid():
            self._begin_anew()
        loop = asyncio.get_running_loop()
        found = self._awaited.get(loop)
        if found is None:
            for other in self._loops():
                if other.is_closed() and (theirs := self._awaited.get(other)) is not None:  # and closed no generators
                    theirs.close(other)
            found = self._awaited[loop] = _OfLoop(
                self._make_async(), self._awaited, loop, self.timeout, self._confirming
            )
        return found

    def call(self, calls: Sequence[Sendable], *, whole: bool = False) -> list[Any]:
        _, held = self._opened()
        if held is None or whole:
            return super().call(calls, whole=whole)
        answers = held.exchange(calls[0].packed() if len(calls) == 1 else _all_packed(calls), len(calls))
        return self._waited(answers) if self._after else answers

    async def call_async(self, calls: Sequence[Sendable], *, whole: bool = False) -> list[Any]:
        mine = self._mine()
        held = mine.held
        if held is None or whole:
            return await super().call_async(calls, whole=whole)
        await mine.begin()
        try:
            answers = await held.exchange(_all_packed(calls), len(calls))
        except TimeoutError as error:
            raise self._is_stuck(mine) from error
        return self._waited(answers) if self._after else answers

    async def send_async(self, commands: Sequence[Command], *, confirmed: bool = False) -> list[Any]:
        mine = self._mine()
        await mine.begin()
        try:
            async with asyncio.timeout(3 * self.timeout):
                return await super().send_async(commands, confirmed=confirmed)
        except TimeoutError as error:
            raise self._is_stuck(mine) from error

    async def ask_async(self, command: Command) -> list[Any]:
        mine = self._mine()
        await mine.begin()
        try:
            async with asyncio.timeout(3 * self.timeout):
                return await super().ask_async(command)
        except TimeoutError as error:
            raise self._is_stuck(mine) from error

    def _is_stuck(self, mine: "_OfLoop") -> exceptions.TimeoutError:
        """Let the next request make a new client for this loop, and return the error."""
        loop = asyncio.get_running_loop()
        if self._awaited.get(loop) is mine:
            del self._awaited[loop]
        return exceptions.TimeoutError(f"there is no answer within {3 * self.timeout:g} s")

    def disconnect(self) -> None:
        client, held = self._opened()
        if held is not None:
            held.drop()
        client.connection_pool.disconnect(inuse_connections=False)

    async def disconnect_async(self) -> None:
        mine = self._mine()
        if mine.held is not None:
            await mine.held.drop()
        await mine.client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        if self._process != os.getpid():
            self._begin_anew()
        opened, self._blocking = self._blocking, None
        if opened is not None:
            if opened[1] is not None:
                opened[1].close()
            for pool in (one for client in (opened[0], *_sentinels(opened[0])) for one in _pools(client)):
                pool.disconnect(inuse_connections=False)  # a thread may be reading its answers
        for loop in self._loops():
            if (one := self._awaited.get(loop)) is not None:
                one.close(loop)

    def _loops(self) -> list[asyncio.AbstractEventLoop]:
        """Return the loops with a client. Another thread may be adding its own, which items() would not bear."""
        return [loop for ref in self._awaited.keyrefs() if (loop := ref()) is not None]


def _all_packed(calls: Sequence[Sendable]) -> bytes:
    return b"".join([call.packed() for call in calls])


def _pools(client: Any) -> list[Any]:
    """Return the pools of a blocking client; of a Cluster, those of its nodes."""
    if (pool := getattr(client, "connection_pool", None)) is not None:
        return [pool]
    return [node.redis_connection.connection_pool for node in client.get_nodes() if node.redis_connection is not None]


def _sentinels(client: Any) -> list[Any]:
    """Return the clients by which a client asks Sentinels."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return [] if manager is None else list(manager.sentinels)


class _OfLoop:
    """The client of one event loop. It is closed when its loop ends."""

    def __init__(
        self,
        client: Any,
        home: "WeakKeyDictionary[Any, _OfLoop]",
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        confirming: Packed,
    ) -> None:
        self.client = client
        pool = getattr(client, "connection_pool", None)
        self.held = None if pool is None else HeldConnectionsAsync(pool, timeout, confirming)
        self._home, self._loop = home, loop
        self._end: AsyncGenerator[None] | None = None

    async def begin(self) -> None:
        """Let the loop close the client: at its end, a loop closes the asynchronous generators that were begun in it."""
        if self._end is None:
            self._end = self._closing()
            await anext(self._end)

    async def _closing(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._home.pop(self._loop, None)
            for client in (self.client, *_sentinels(self.client)):
                with suppress(Exception):
                    await client.aclose()

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close it, from anywhere."""
        end = self._end
        self._home.pop(loop, None)
        if loop.is_closed():
            self._drop()
            return
        if end is None:
            return
        if not loop.is_running():
            if asyncio._get_running_loop() is None:
                loop.run_until_complete(end.aclose())
        else:
            with suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(_ended(end), loop)

    def _drop(self) -> None:
        """Close the sockets. Nobody would run what a close leaves to the loop."""
        pool = getattr(self.client, "connection_pool", None)
        for connection in [] if pool is None else [*pool._available_connections, *pool._in_use_connections]:  # noqa: SLF001 - no public name
            transport = getattr(connection._writer, "transport", None)  # noqa: SLF001 - as above
            plain = getattr(transport, "_sock", None)  # of asyncio's own loops, without TLS
            if transport is not None and plain is not None:
                plain.close()
                transport._closing, transport._sock = True, None  # noqa: SLF001 - else they warn that nobody closed them
                connection._writer = connection._reader = None  # noqa: SLF001 - as above


async def _ended(generator: AsyncGenerator[None]) -> None:
    await generator.aclose()
