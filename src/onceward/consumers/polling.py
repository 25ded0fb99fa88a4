"""When to ask a queue for messages, and for how many: never more than can begin soon."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from onceward.consumers.broker import Broker, BrokerError
from onceward.consumers.callers import comes
from onceward.core.clock import boottime
from onceward.observe.logs import logger

M = TypeVar("M")
SOON: Final = 0.5  # seconds within which a held message should begin
AHEAD: Final = 50  # the most messages held beyond the running ones
POLLS: Final = 8  # the most polls at a time; more than one only while the queue is full
LINGER: Final = 0.05  # seconds that a free place waits for others, so that one poll fills several
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds without a poll after a failure


class Trouble:
    """Whether the queue or the ledger fails, and how long to pause: twice as long each time."""

    def __init__(self) -> None:
        self._pause = self._until = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the last report was a failure."""
        return self._pause > 0

    @property
    def left(self) -> float:
        """Seconds left of the pause."""
        return max(0.0, self._until - boottime()) if self._pause else 0.0

    def note_failure(self) -> None:
        """Report a failure. One during a pause is ignored, as its request began before the pause."""
        if not self.left:
            self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
            self._until = boottime() + self._pause

    def over(self) -> None:
        """Report a success."""
        self._pause = 0.0


class Polls(Generic[M]):
    """The polls of one run. It belongs to one event loop.

    ``receive`` is the broker's, or waits before that. ``take`` gets messages to begin, or after a stop to give back. ``typical``
    returns how many seconds a handler takes; 0 if unknown. With ``until_empty``, the polls stop when nothing is left to receive, and nothing under way.

    Attributes:
        stopping: whether new polls have stopped.
        ledger: whether the ledger works; report each outcome to it.
    """

    def __init__(
        self,
        broker: Broker[M],
        receive: Callable[[int], Awaitable[Sequence[M]]],
        take: Callable[[Sequence[M]], None],
        *,
        concurrency: int,
        typical: Callable[[], float],
        until_empty: bool,
    ) -> None:
        self.stopping = False
        self.ledger, self._queue = Trouble(), Trouble()
        self._receive, self._take = receive, take
        self._broker, self._concurrency, self._typical = broker, concurrency, typical
        self._until_empty = until_empty
        self._under_way = 0  # messages that were taken and are not done
        self._asked_for = 0  # messages that the running polls may bring
        self._changed = asyncio.Event()
        self._polls: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Poll until :meth:`stop`, and until the running polls end; raises BrokerError if the queue is gone."""
        self._begin()
        try:
            while self._polls:
                await asyncio.wait(set(self._polls), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for poll in self._polls:
                poll.cancel()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Begin no more polls."""
        self.stopping = True
        self._changed.set()

    def done(self) -> None:
        """Report that one of the taken messages is done."""
        self._under_way -= 1
        self._changed.set()

    def _begin(self) -> None:
        poll = asyncio.get_running_loop().create_task(self._poll())
        self._polls.add(poll)
        poll.add_done_callback(self._ended)

    def _ended(self, poll: "asyncio.Task[None]") -> None:
        self._polls.discard(poll)
        if not poll.cancelled() and (error := poll.exception()) is not None:
            self._error = self._error or error
            self.stop()

    async def _poll(self) -> None:
        while count := await self._room():
            self._asked_for += count
            try:
                messages = await self._receive(count)
            except BrokerError as error:
                self._failed(error)
                continue
            except self._broker.client_errors as error:
                self._failed(self._broker.explained(error))
                continue
            finally:
                self._asked_for -= count
                self._changed.set()
            self._queue.over()
            if messages:
                self._under_way += len(messages)
                self._take(messages)
            if len(messages) == count and len(self._polls) < POLLS and self._free() > 0:
                self._begin()
            elif len(messages) < count and len(self._polls) > 1:
                self._polls.discard(asyncio.current_task())
                return
            if self._until_empty and not (messages or self._under_way or self._asked_for):
                self.stop()

    def _failed(self, error: BrokerError) -> None:
        if self._until_empty or error.gone:
            raise error
        self._queue.note_failure()
        logger().warning("%s; asking again in %.0f s", error, self._queue.left)

    def _free(self) -> int:
        """Return for how many messages there is room; during trouble at most one, as a test."""
        busy = self._under_way + self._asked_for
        if self.ledger.lasts or self._queue.lasts:
            return 0 if busy else 1
        return self._capacity() - busy

    def _capacity(self) -> int:
        typical = self._typical()
        ahead = min(AHEAD, int(self._concurrency * SOON / typical)) if typical else 0
        return self._concurrency + ahead

    async def _room(self) -> int:
        """Wait until a poll is worthwhile, and return for how many messages; 0 means stop."""
        free_since: float | None = None
        while not self.stopping:
            timeout: float | None = max(self.ledger.left, self._queue.left) or None
            free = 0 if timeout else self._free()
            if free > 0:
                now = boottime()
                free_since = now if free_since is None else free_since
                timeout = free_since + LINGER - now
                if free >= min(self._broker.most, self._capacity()) or timeout <= 0:
                    return min(free, self._broker.most)
            await comes(self._changed, timeout)
        return 0
