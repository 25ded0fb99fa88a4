"""The lanes that threads share. The first of a batch carries it."""

import contextlib
import threading
from typing import Any, Final

from onceward.core.clock import boottime
from onceward.stores.lanes.lane import Lanes, ServerLane
from onceward.stores.lanes.line import ArgumentsOf, LaneRequest, Ticket, abandon, carry

_NAP: Final = 0.5  # seconds after which a waiting thread looks whether a lane was lost by an interrupt


class _ThreadTicket(Ticket):
    """A request that waits in a thread.

    Attributes:
        lane: the lane on which this thread carries the next batch.
    """

    lane: Any = None
    outcome: object = None
    is_over = False

    def __init__(self, request: LaneRequest, arguments: ArgumentsOf) -> None:
        super().__init__(request, arguments)
        self._asleep = threading.Lock()
        self._asleep.acquire()

    @property
    def is_waiting(self) -> bool:
        """Whether it has neither a lane nor its outcome."""
        return self.lane is None and not self.is_over

    def end(self, outcome: object) -> None:
        self.outcome, self.is_over = outcome, True
        self.wake()

    def wake(self) -> None:
        """Let the thread look."""
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._asleep.release()

    def sleep(self, seconds: float) -> None:
        """Wait until it is woken."""
        self._asleep.acquire(timeout=max(0.0, seconds))


class ThreadLanes(Lanes):
    """The lanes that threads share."""

    def run(self, request: LaneRequest, arguments: ArgumentsOf) -> Any:
        """Do one request, and return its reply."""
        with self._lock:
            lane = None if self._line else self._free()
            ticket = self._queue(request, arguments) if lane is None else None
        while lane is not None:
            try:
                reply = request.reply(lane.fetch(*arguments(request)))
            except BaseException as error:
                self._end(lane, error)
                with self._lock:
                    if not self._can_wait(lane, error):
                        raise
                    lane = self._pop()
                    ticket = self._queue(request, arguments) if lane is None else None
            else:
                self._pass_on(lane)
                return reply
        assert ticket is not None
        return self._wait(ticket)

    def _queue(self, request: LaneRequest, arguments: ArgumentsOf) -> _ThreadTicket:
        ticket = _ThreadTicket(request, arguments)
        self._line.add(ticket)
        return ticket

    def _wait(self, ticket: _ThreadTicket) -> Any:
        """Wait until another thread has done the request, or carry it."""
        batch = [ticket]
        try:
            self._sleep(ticket)
            if ticket.lane is not None:
                with self._lock:
                    self._line.fill(batch)
                self._carry(ticket.lane, batch)
        except BaseException as error:
            self._withdraw(ticket, batch, error)
            raise
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def _sleep(self, ticket: _ThreadTicket) -> None:
        """Wait until the ticket has a lane or its outcome."""
        end = ticket.since + self._timeout
        ticket.sleep(_NAP)
        while ticket.is_waiting:
            with self._lock:
                if not self._all and (lane := self._free()) is not None:  # an interrupt has lost the last one
                    self._pass_on(lane)
                if boottime() >= end and self._line.remove(ticket):
                    raise self._in_use()
            if boottime() >= end + 2 * self._timeout:
                raise self._no_word()
            ticket.sleep(_NAP)

    def _carry(self, lane: ServerLane, batch: list[_ThreadTicket]) -> None:
        steps, answer = carry(batch), None
        with contextlib.suppress(StopIteration):
            while True:
                request = steps.send(answer)
                try:
                    answer = request.reply(lane.fetch(*batch[0].arguments(request)))
                except Exception as error:
                    answer = self._for_one(lane, error)
        batch[0].lane = None
        self._pass_on(lane)

    def _withdraw(self, ticket: _ThreadTicket, batch: list[_ThreadTicket], error: BaseException) -> None:
        """Leave the line for good. The lane goes to the next one, and nobody is left waiting."""
        ticket.is_over = True
        with self._lock:
            is_waiting, lane, ticket.lane = self._line.remove(ticket), ticket.lane, None
        if lane is not None and not is_waiting:
            abandon(batch, error)
            self._end(lane, error)

    def _pass_on(self, lane: ServerLane) -> None:
        """Give a lane to the first in the line, who carries the next batch on it."""
        with self._lock:
            ticket = self._line.pop()
            if ticket is not None:
                ticket.lane = lane
                ticket.wake()
            elif self._closed:
                self._drop(lane, friendly=True)
            else:
                self._idle.append(lane)
