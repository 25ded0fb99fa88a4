"""What sends a ledger's requests to one server, and how a client of the caller's serves both kinds of callers."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, Protocol

from redis import exceptions

from onceward.stores.lanes import LedgerLanes
from onceward.stores.redis.confirmation import Confirmation
from onceward.stores.redis.requests import BellWait, RedisRequest
from onceward.stores.sql.refusals import Broken

MOST_LISTENING: Final = 100  # connections that wait for a bell
_TROUBLES: Final = frozenset({exceptions.ReadOnlyError, exceptions.NoScriptError})


class Servers(Protocol):
    """What sends requests. A request raises Broken or redis-py's errors.

    Attributes:
        confirmation: what a write must have before it counts.
        timeout: seconds for one request.
    """

    confirmation: Confirmation
    timeout: float

    def run(self, request: RedisRequest) -> list[Any]:
        """Do one request, and return its answers: errors in the places of what a server refused."""

    async def run_async(self, request: RedisRequest) -> list[Any]:
        """As :meth:`run`, for a coroutine."""

    def close(self) -> None:
        """Close what was opened here; the next use opens it again."""


class OneServer:
    """The lanes to one server. Who waits for a bell has others: it would hold up the rest.

    Args:
        make: makes a lane for threads.
        make_async: makes one for coroutines.
        most: lanes.
        confirmation: as for :class:`Servers`.
        timeout: as for :class:`Servers`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        make_async: Callable[[], Any],
        most: int,
        confirmation: Confirmation,
        timeout: float,
    ) -> None:
        self.confirmation, self.timeout = confirmation, timeout
        self._calls: LedgerLanes[Any] = LedgerLanes(make, make_async, most, timeout)
        self._bells: LedgerLanes[Any] = LedgerLanes(make, make_async, MOST_LISTENING, timeout)

    def run(self, request: RedisRequest) -> list[Any]:
        """As :class:`Servers`."""
        lanes = self._bells if type(request) is BellWait else self._calls
        answers: list[Any] = lanes.run(request, _asked)
        if not _TROUBLES.isdisjoint(map(type, answers)) and (lost := self._lost(answers)):
            again = lanes.run(request.whole(lost), _asked)
            return completed(answers, lost, again)
        return answers

    async def run_async(self, request: RedisRequest) -> list[Any]:
        """As :class:`Servers`."""
        lanes = self._bells if type(request) is BellWait else self._calls
        answers: list[Any] = await lanes.run_async(request, _asked)
        if not _TROUBLES.isdisjoint(map(type, answers)) and (lost := self._lost(answers)):
            again = await lanes.run_async(request.whole(lost), _asked)
            return completed(answers, lost, again)
        return answers

    def _lost(self, answers: list[Any]) -> list[int]:
        """Return the places of scripts that the server has lost. Leave a server that is a replica now."""
        kinds = [type(answer) for answer in answers]
        if exceptions.ReadOnlyError in kinds:
            self.close()
        return [place for place, kind in enumerate(kinds) if kind is exceptions.NoScriptError]

    def close(self) -> None:
        """As :class:`Servers`."""
        self._calls.close()
        self._bells.close()


def _asked(request: RedisRequest) -> tuple[RedisRequest]:
    """Return what a lane takes for a request."""
    return (request,)


def completed(answers: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """Return answers with others in some places."""
    given = dict(zip(places, others, strict=True))
    return [given.get(place, answer) for place, answer in enumerate(answers)]


class InThreads:
    """A blocking client of the caller's. It serves coroutines in threads."""

    def __init__(self, servers: Servers) -> None:
        self.confirmation, self.timeout, self._servers = servers.confirmation, servers.timeout, servers

    def run(self, request: RedisRequest) -> list[Any]:
        """As :class:`Servers`."""
        return self._servers.run(request)

    async def run_async(self, request: RedisRequest) -> list[Any]:
        """As :class:`Servers`."""
        return await asyncio.to_thread(self._servers.run, request)

    def close(self) -> None:
        """Leave it open."""


class OnItsLoop:
    """An asynchronous client of the caller's. It serves blocking callers, such as the heartbeat's, on the loop that used it last."""

    def __init__(self, servers: Servers) -> None:
        self.confirmation, self.timeout, self._servers = servers.confirmation, servers.timeout, servers
        self._process: int | None = None  # that has used it; before that it has no sockets, and a child may begin
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run_async(self, request: RedisRequest) -> list[Any]:
        """As :class:`Servers`."""
        process = os.getpid()
        if self._process is None:
            self._process = process
        elif process != self._process:  # its sockets are the parent's: an answer would go to the wrong one
            raise exceptions.DataError(
                "this process was forked after the client was used: make its own client and Once in each process"
            )
        self._loop = asyncio.get_running_loop()
        return await self._servers.run_async(request)

    def run(self, request: RedisRequest) -> list[Any]:
        """As :class:`Servers`."""
        loop = self._loop
        if loop is None or not loop.is_running():
            raise exceptions.DataError(
                "this client is asynchronous, and no event loop is running that it was used in: for handlers that are not "
                "asynchronous, give a URL or a redis.Redis"
            )
        if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
            raise exceptions.DataError(
                "this client is asynchronous, and its event loop would wait for itself: await what has a form to await, or give "
                "a URL"
            )
        asking = asyncio.run_coroutine_threadsafe(self.run_async(request), loop)
        try:
            return asking.result(2 * self.timeout)
        except (TimeoutError, CancelledError) as error:
            asking.cancel()
            raise Broken(f"its event loop gave no answer within {2 * self.timeout:g} s") from error

    def close(self) -> None:
        """Leave it open."""
