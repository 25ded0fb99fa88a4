"""The lanes of one event loop. A task carries each batch, so that no waiter's cancellation stops the others."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from onceward.core.clock import boottime
from onceward.stores.lanes.lane import Lanes, ServerLane
from onceward.stores.lanes.line import Asked, LaneRequest, Ticket, WaitingLine, abandon, carried
from onceward.stores.sql.refusals import SqlRefusal

L = TypeVar("L", bound=ServerLane)


class _LoopTicket(Ticket):
    """A request that waits in a coroutine."""

    def __init__(self, request: LaneRequest, asked: Asked, outcome: "asyncio.Future[Any]") -> None:
        super().__init__(request, asked)
        self.outcome = outcome

    @property
    def is_over(self) -> bool:
        return self.outcome.done()  # also if its waiter was cancelled

    def answer(self, reply: object) -> None:
        if not self.outcome.done():
            self.outcome.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class LoopLanes(Lanes[L]):
    """The lanes of one event loop. A task carries the batches, so that no waiter's cancellation stops the others."""

    def __init__(self, make: Callable[[], L], most: int, timeout: float, left: frozenset[str]) -> None:
        super().__init__(make, most, timeout, left)
        self._line: WaitingLine[_LoopTicket] = WaitingLine()
        self._tasks: set[asyncio.Task[None]] = set()  # a loop does not keep them alive

    async def run(self, request: LaneRequest, asked: Asked) -> Any:
        """Do one request, and return its reply."""
        lane = None if self._line else self._free()
        if lane is None:
            ticket = _LoopTicket(request, asked, asyncio.get_running_loop().create_future())
            self._line.add(ticket)
            return await ticket.outcome
        try:
            reply = request.reply(await lane.fetch(*asked(request)))
        except BaseException as error:
            self._end(lane, error)
            raise
        self._pass_on(lane)
        return reply

    async def _serve(self, lane: L) -> None:
        """Carry what waits, until nothing does."""
        while (ticket := self._line.pop()) is not None:
            if ticket.is_over:
                continue
            if boottime() - ticket.since > self._timeout:
                ticket.fail(self._in_use())
                continue
            batch = self._line.batch(ticket)
            try:
                await self._carry(lane, batch)
            except BaseException as error:
                abandon(batch, error)
                self._end(lane, error)
                if not isinstance(error, Exception):
                    raise
                return
        self._pass_on(lane)

    async def _carry(self, lane: L, batch: list[_LoopTicket]) -> None:
        steps = carried(batch)
        with contextlib.suppress(StopIteration):
            request = next(steps)
            while True:
                try:
                    rows = await lane.fetch(*batch[0].asked(request))
                except (SqlRefusal, ValueError) as error:
                    if not self._is_usable(error):
                        raise
                    rows = error
                request = steps.send(rows)

    def _pass_on(self, lane: L) -> None:
        """Let a task carry the next batch on a lane."""
        if self._line:
            task = asyncio.get_running_loop().create_task(self._serve(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif self._closed:
            self._drop(lane, friendly=True)
        else:
            self._idle.append(lane)
