"""A lane to Redis: a connection of redis-py, on which calls leave in one piece, and with them WAIT if replicas must confirm them.

A connection that was lost, interrupted or cancelled in the middle of a request is closed, so that no later one reads its answers.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from redis import exceptions

from onceward.stores.lanes.lane import ServerLane, WatchedLane, drop
from onceward.stores.lanes.refusals import Broken
from onceward.stores.redis.requests import Confirmation, RedisRequest, packed

_FAILURES: Final = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
_CONNECTING: Final = 3  # times as long as a request: there can be several Sentinels


class _Lane(ServerLane):
    """What all kinds have in common."""

    def __init__(self, make: Callable[[], Any], confirmation: Confirmation) -> None:
        super().__init__()
        self._make, self._confirmation = make, confirmation or None

    def _pack(self, request: RedisRequest) -> tuple[bytes, int]:
        """Return a request as it is sent, with what confirms it, and how many answers there will be."""
        if self._confirmation is None or request.base is None:
            return request.packed(), request.count
        # From 7.2, WAIT answers at once on a connection that has written nothing.
        marking = packed(["SET", request.base + b"confirmed", b""]) + packed(self._confirmation.command)
        return request.packed() + marking, request.count + 2

    def _confirm(self, request: RedisRequest, answers: list[Any]) -> list[Any]:
        """Return the answers without those of the confirmation; errors in their places if there is none."""
        if self._confirmation is None or request.base is None:
            return answers
        *answers, marked, reached = answers
        missing = marked if isinstance(marked, Exception) else self._confirmation.missing(reached)
        return answers if missing is None else [one if isinstance(one, Exception) else missing for one in answers]


class RedisLane(_Lane, WatchedLane):
    """A lane for threads."""

    def fetch(self, request: RedisRequest) -> list[Any]:
        try:
            if not self.is_ready:
                self.close()
                self._pool = self._make()
                wire = self._hold(self._pool.make_connection())
                try:
                    wire.connect()
                finally:
                    for one in _sentinels(self._pool):
                        one.close()
                self._open()
            return self._confirm(request, _talk(self._wire, *self._pack(request)))
        except _FAILURES as error:
            raise failure(error) from error

    @staticmethod
    def _close(wire: Any, _: bool) -> None:
        wire.disconnect()


class AsyncRedisLane(_Lane, WatchedLane):
    """A lane for the coroutines of one event loop. ``seconds``: for one request; all else as for :class:`_Lane`."""

    def __init__(self, make: Callable[[], Any], confirmation: Confirmation, seconds: float) -> None:
        super().__init__(make, confirmation)
        self._timeout, self._close = seconds, partial(_close, asyncio.get_running_loop())

    async def fetch(self, request: RedisRequest) -> list[Any]:
        seconds = self._timeout
        try:
            if not self.is_ready:
                seconds *= _CONNECTING
                async with asyncio.timeout(seconds):
                    await self._connect()
            seconds = self._timeout
            async with asyncio.timeout(seconds):
                return self._confirm(request, await _talk_async(self._wire, *self._pack(request)))
        except TimeoutError as error:
            raise Broken(f"there is no answer within {seconds:g} s") from error
        except _FAILURES as error:
            raise failure(error) from error

    async def _connect(self) -> None:
        self.close()
        self._pool = self._make()
        wire = self._hold(self._pool.make_connection())
        try:
            await wire.connect()
        finally:
            for one in _sentinels(self._pool):
                await one.aclose()
        self._open()


def _close(loop: asyncio.AbstractEventLoop, wire: Any, _: bool) -> None:
    writer = wire._writer  # noqa: SLF001 - no public name
    drop(writer.transport, loop, partial(_abort, writer))
    wire._writer = wire._reader = None  # noqa: SLF001 - else it warns that nobody closed it


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection without waiting for a frozen server. Until then, somebody must have the writer: else it warns."""
    writer.transport.abort()


def failure(error: Exception) -> Broken:
    """Return the error of a request that is in doubt. What the driver says is its cause."""
    text = str(error).partition(" : <")[0] or type(error).__name__
    error.args = (text,)  # redis-py shows a Sentinel's client after it, with its password
    return Broken(text)


def _talk(wire: Any, text: bytes, count: int) -> list[Any]:
    """Send commands, and return their answers, or errors in their places."""
    wire.send_packed_command([text])
    answers: list[Any] = []
    for _ in range(count):
        try:
            answers.append(wire.read_response(disable_decoding=True))
        except exceptions.ResponseError as error:
            answers.append(error)
        except ValueError as error:  # the stream is in disorder
            raise failure(error) from error
    return answers


async def _talk_async(wire: Any, text: bytes, count: int) -> list[Any]:
    """As :func:`_talk`, for a coroutine."""
    await wire.send_packed_command([text])
    answers: list[Any] = []
    for _ in range(count):
        try:
            answers.append(await wire.read_response(disable_decoding=True))
        except exceptions.ResponseError as error:
            answers.append(error)
        except ValueError as error:  # as above
            raise failure(error) from error
    return answers


def _sentinels(pool: Any) -> Sequence[Any]:
    """Return the clients by which a pool has asked Sentinels for the primary."""
    return getattr(getattr(pool, "sentinel_manager", None), "sentinels", ())
