"""The sync and the async wire of a store or a queue, each opened on first use; sends many calls in parallel."""

import threading
from collections.abc import Callable
from contextlib import suppress

from onceward.core.clock import Clock, boottime
from onceward.wire.calls import EXPIRED, SKEWED, AsyncWire, Call, Many, ObjectCall, ServiceAnswer, Wire, code_of
from onceward.wire.clock import ServerClock

AT_ONCE = 8  # parallel calls of one batch; the sync wire uses one thread each


class Wires:
    """Sends the requests of a store or a queue, over wires that it opens with ``wire`` and ``async_wire``.

    ``renew`` asks for new credentials after a refusal, and returns whether a retry may help.
    """

    def __init__(
        self, wire: Callable[[], Wire], async_wire: Callable[[], AsyncWire], renew: Callable[[], bool] = lambda: False
    ) -> None:
        self._open, self._open_async, self.renew = wire, async_wire, renew
        self._wire: Wire | None = None
        self._async_wire: AsyncWire | None = None
        self._lock = threading.RLock()  # reentrant: a signal handler may call in this thread
        self._clock = ServerClock(boottime)

    def ask(self, call: Call | ObjectCall) -> ServiceAnswer:
        """Send a call signed with the server's time, and once more if that or new credentials can help.

        Raises:
            StoreError: no answer came, or there are no credentials.
        """
        answer = self._learned(self.send(call, self._clock.signing()))
        if not self.may_renew(answer):
            return answer
        return self._learned(self.send(call, self._clock.signing()))

    async def ask_async(self, call: Call | ObjectCall) -> ServiceAnswer:
        """Like :meth:`ask`, but async."""
        answer = self._learned(await self.send_async(call, self._clock.signing()))
        if not self.may_renew(answer):
            return answer
        return self._learned(await self.send_async(call, self._clock.signing()))

    def _learned(self, answer: object) -> ServiceAnswer:
        assert isinstance(answer, ServiceAnswer)
        self._clock.learn(answer)
        return answer

    def send(self, request: Call | ObjectCall | Many, at: float) -> ServiceAnswer | list[ServiceAnswer | Exception]:
        """Send a call and return its answer, or send many in parallel and return a list of answers and errors."""
        wire = self._wire or self._opened()
        if type(request) is not Many:
            return wire.send(request, at)  # type: ignore[arg-type]  # the checker does not narrow by `type() is not`
        return _side_by_side(wire, request.calls, at)

    async def send_async(
        self, request: Call | ObjectCall | Many, at: float
    ) -> ServiceAnswer | list[ServiceAnswer | Exception]:
        """Like :meth:`send`, but async."""
        wire = self._async_wire or self._opened_async()
        if type(request) is not Many:
            return await wire.send(request, at)  # type: ignore[arg-type]  # as above
        import asyncio

        gate = asyncio.Semaphore(AT_ONCE)

        async def one(call: Call | ObjectCall) -> ServiceAnswer:
            async with gate:
                return await wire.send(call, at)

        got = await asyncio.gather(*(one(call) for call in request.calls), return_exceptions=True)
        for answer in got:
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
        return [answer for answer in got if isinstance(answer, ServiceAnswer | Exception)]

    def may_renew(self, answer: ServiceAnswer) -> bool:
        """Return whether a signature was refused, and may be accepted with the server's time or new credentials."""
        code = "" if answer.status == 200 else code_of(answer)
        return code in SKEWED or (code in EXPIRED and self.renew())

    def close(self) -> None:
        """Close both wires. The next call opens them again."""
        with self._lock:
            wires = self._wire, self._async_wire
            self._wire = self._async_wire = None
        for wire in wires:
            if wire is not None:
                wire.close()

    def _opened(self) -> Wire:
        with self._lock:
            self._wire = self._wire or self._open()
            return self._wire

    def _opened_async(self) -> AsyncWire:
        with self._lock:
            self._async_wire = self._async_wire or self._open_async()
            return self._async_wire


def _side_by_side(wire: Wire, calls: tuple[Call | ObjectCall, ...], at: float) -> list[ServiceAnswer | Exception]:
    replies: list[ServiceAnswer | Exception] = [RuntimeError("not sent")] * len(calls)
    todo = iter(enumerate(calls))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number, call = next(todo, (-1, None))
            if call is None:
                return
            try:
                replies[number] = wire.send(call, at)
            except Exception as error:  # the others go on; the store's verb reads the error
                replies[number] = error

    threads: list[threading.Thread] = []
    with suppress(RuntimeError):  # the system has no more threads: those that run send all
        for _ in range(min(AT_ONCE, len(calls)) - 1):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    return replies


def opened(region: str | None, *, timeout: float, clock: Clock = boottime, **services: str | None) -> Wires:
    """Return our own wires. The first call looks up the credentials and, if none is given, the region.

    ``services`` are as for :class:`onceward.wire.endpoints.Endpoints`, and all else as for :class:`HttpWire`. A service's URL
    that is not valid is a ValueError.
    """
    from onceward.wire.credentials import CredentialSource, find_region
    from onceward.wire.endpoints import Endpoints

    Endpoints("", **services)  # refuses a wrong endpoint now
    source = CredentialSource()

    def wire() -> Wire:
        from onceward.wire.sockets import HttpWire

        return HttpWire(Endpoints(find_region(region), **services), source, timeout=timeout, clock=clock)

    def async_wire() -> AsyncWire:
        from onceward.wire.nonblocking import AsyncHttpWire

        return AsyncHttpWire(Endpoints(find_region(region), **services), source, timeout=timeout, clock=clock)

    return Wires(wire, async_wire, renew=source.expire)
