"""The lanes of one event loop. A task carries each batch, so that no waiter's cancellation stops the others."""

import asyncio
import contextlib
from functools import partial
from typing import Any, Final

from onceward.core.clock import boottime
from onceward.stores.lanes.lane import Lanes, ServerLane
from onceward.stores.lanes.line import ArgumentsOf, LaneRequest, Ticket, abandon, carry

_NAP: Final = 0.5  # seconds between two looks at who has waited too long


class _LoopTicket(Ticket):
    """A request that waits in a coroutine."""

    def __init__(self, request: LaneRequest, arguments: ArgumentsOf, outcome: "asyncio.Future[Any]") -> None:
        super().__init__(request, arguments)
        self.outcome = outcome

    @property
    def is_over(self) -> bool:
        return self.outcome.done()  # also if its waiter was cancelled

    def end(self, outcome: object) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class LoopLanes(Lanes):
    """The lanes of one event loop. A task carries the batches, so that no waiter's cancellation stops the others."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._tasks: set[asyncio.Task[None]] = set()  # a loop does not keep them alive
        self._waiting: set[_LoopTicket] = set()
        # Whether a timer runs, for all who wait. The loop has it: kept here, it would make a cycle.
        self._is_looking = False

    async def run(self, request: LaneRequest, arguments: ArgumentsOf) -> Any:
        """Do one request, and return its reply."""
        lane = None if self._line else self._free()
        while lane is not None:
            try:
                reply = request.reply(await lane.fetch(*arguments(request)))
            except BaseException as error:
                self._end(lane, error)
                if not self._can_wait(lane, error):
                    raise
                lane = self._pop()
            else:
                self._pass_on(lane)
                return reply
        ticket = _LoopTicket(request, arguments, asyncio.get_running_loop().create_future())
        self._line.add(ticket)  # until a task has done it
        self._waiting.add(ticket)
        if not self._is_looking:
            self._look_later()
        try:
            return await ticket.outcome
        finally:
            self._waiting.discard(ticket)

    def _look_later(self) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_later(min(_NAP, self._timeout / 4), self._look)

    def _look(self) -> None:
        """Fail requests that have waited for a lane too long. One that has left gets more time."""
        now = boottime()
        for ticket in list(self._waiting):
            if now >= ticket.since + self._timeout and self._line.remove(ticket):
                ticket.end(self._in_use())
            elif now >= ticket.since + 3 * self._timeout:
                ticket.end(self._no_word())
        self._is_looking = False
        if self._waiting:
            self._look_later()

    async def _serve(self, lane: ServerLane) -> None:
        """Carry what waits, until nothing does."""
        while (ticket := self._line.pop()) is not None:
            batch = [ticket]
            self._line.fill(batch)
            try:
                await self._carry(lane, batch)
                if len(batch) > 1 and not self._line:
                    await asyncio.sleep(0)  # those just answered ask again: else one takes the lane, and the rest wait
            except BaseException as error:
                abandon(batch, error)
                self._end(lane, error)
                if not isinstance(error, Exception):
                    raise
                return
        self._pass_on(lane)

    async def _carry(self, lane: ServerLane, batch: list[_LoopTicket]) -> None:
        steps, answer = carry(batch), None
        with contextlib.suppress(StopIteration):
            while True:
                request = steps.send(answer)
                try:
                    answer = request.reply(await lane.fetch(*batch[0].arguments(request)))
                except Exception as error:
                    answer = self._for_one(lane, error)

    def _pass_on(self, lane: ServerLane) -> None:
        """Let a task carry the next batch on a lane."""
        if self._line:
            task = asyncio.get_running_loop().create_task(self._serve(lane))
            self._tasks.add(task)
            task.add_done_callback(partial(self._take_back, lane))
        elif self._closed:
            self._drop(lane, friendly=True)
        else:
            self._idle.append(lane)

    def _take_back(self, lane: ServerLane, task: "asyncio.Task[None]") -> None:
        """Take back a lane whose task was cancelled before it began."""
        self._tasks.discard(task)
        if task.cancelled() and lane in self._all:
            self._pass_on(lane)
