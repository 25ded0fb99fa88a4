"""Runs the requests of a Redis ledger, and looks at the server before the first one."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from random import SystemRandom
from typing import Any, Final

from redis.exceptions import RedisClusterException, RedisError

from onceward.core.drivers import Steps, drive, drive_async
from onceward.errors import StoreError
from onceward.stores.observed import Observed
from onceward.stores.redis.faults import translated
from onceward.stores.redis.names import RedisNames
from onceward.stores.redis.requests import Asking, BellWait, RedisRequest, RoundTrip
from onceward.stores.redis.schema import prepared
from onceward.stores.redis.servers import Servers
from onceward.stores.sql.refusals import Broken

PURGE_EVERY, PURGE_LIMIT = 1000, 2500  # purge up to 2,500 records after every 1,000 keys: it asks each shard
_ERRORS: Final = (Broken, RedisError, RedisClusterException, UnicodeError)


class RedisExchange(Observed, ABC):
    """The I/O of a ledger.

    Args:
        conduit: sends the requests.
        names: of its Redis keys.
        url: where it is, for messages; without a password.
        evicts: whether a server that evicts is accepted.
    """

    def __init__(self, conduit: Servers, names: RedisNames, url: str, *, evicts: bool) -> None:
        self.url = url
        self.names = names
        self.evicts = evicts
        self.bare = Unprepared(conduit, url)
        self._ready = False
        self._looks: dict[asyncio.AbstractEventLoop, asyncio.Task[bool]] = {}  # under way
        self._listening: dict[str, object] = {}  # the keys whose change a waiter of this process waits for
        self.loses_messages = False  # whether the server may evict what is not sent yet
        self._claims = SystemRandom().randrange(PURGE_EVERY)  # also processes that end early purge now and then

    def exchange(self, request: object) -> object:
        """Run one request, blocking."""
        if not (self._ready or _is_preparing(request)):
            drive(self.prepared(), self.bare)
        reply = self.bare.exchange(request)
        if self._is_purging(request):
            with suppress(StoreError):  # the next one will
                drive(self.purging(PURGE_LIMIT), self.bare)
        return reply

    async def exchange_async(self, request: object) -> object:
        """Run one request."""
        if not (self._ready or _is_preparing(request)):
            await self._look()
        reply = await self.bare.exchange_async(request)
        if self._is_purging(request):
            with suppress(StoreError):
                await drive_async(self.purging(PURGE_LIMIT), self.bare)
        return reply

    async def _look(self) -> None:
        """Look at the server, once for all tasks of an event loop that wait for it. One that is cancelled stops no other."""
        loop = asyncio.get_running_loop()
        if (look := self._looks.get(loop)) is None:
            look = self._looks[loop] = loop.create_task(drive_async(self.prepared(), self.bare))
            look.add_done_callback(partial(self._looked, loop))
        await asyncio.shield(look)

    def _looked(self, loop: asyncio.AbstractEventLoop, look: "asyncio.Task[bool]") -> None:
        self._looks.pop(loop, None)
        if not look.cancelled():
            look.exception()  # all who waited for it may have gone

    def prepared(self) -> Steps[bool]:
        """Make the ledger, and return whether it was not there before."""
        looked = yield from prepared(self.names, self.url, evicts=self.evicts)
        self._ready, self.loses_messages = True, looked.evicts_any
        return looked.made

    @abstractmethod
    def purging(self, limit: int) -> Steps[object]:
        """Delete some expired records."""

    def _is_purging(self, request: object) -> bool:
        """Return whether it is time to purge: after so many keys that were asked for."""
        if type(request) is RoundTrip and request.action in {"insert", "insert_many"}:
            self._claims += len(request.calls)
            if self._claims >= PURGE_EVERY:
                self._claims = 0
                return True
        return False

    def close(self) -> None:
        """Close the connections."""
        self.bare.conduit.close()

    def action(self, request: object) -> str:
        """Return what a request does."""
        return request.action if isinstance(request, RoundTrip) else type(request).__name__.lower()


class Unprepared:
    """Runs requests without a look at the server."""

    def __init__(self, conduit: Servers, url: str) -> None:
        self.conduit = conduit
        self._url = url

    def exchange(self, request: object) -> Any:
        """Run one request, blocking."""
        asked: RedisRequest = request  # type: ignore[assignment]  # an isinstance() of an ABC costs a microsecond
        try:
            return self._reply(asked, self.conduit.run(asked))
        except _ERRORS as error:
            raise translated(error, self._url) from error

    async def exchange_async(self, request: object) -> Any:
        """Run one request."""
        asked: RedisRequest = request  # type: ignore[assignment]  # as above
        try:
            return self._reply(asked, await self.conduit.run_async(asked))
        except _ERRORS as error:
            raise translated(error, self._url) from error

    def _reply(self, request: RedisRequest, answers: list[Any]) -> Any:
        if type(request) is RoundTrip and request.each:
            return [translated(one, self._url) if isinstance(one, Exception) else one for one in answers]
        for one in answers:
            if isinstance(one, Exception):
                raise one
        return answers[0] if type(request) is BellWait else answers


def _is_preparing(request: object) -> bool:
    """Return whether a request belongs to the look at the server itself."""
    return type(request) is Asking or (type(request) is RoundTrip and request.action == "prepare")
