"""The order in which the records of a batch begin (those of one group one after another, all others at once), and the time that is left."""

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from onceward.batch.handler import BatchHandler
from onceward.batch.outcomes import Item
from onceward.core import worker
from onceward.core.belief import within
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED
from onceward.errors import LeaseLost

CLAIMED: Final = 100  # records claimed together: the size of one DynamoDB batch read
RESERVE: Final = 1.0  # seconds of the time left (at most a tenth of it) that are kept for recording
_WEIGHT: Final = 0.2  # of the newest duration in the moving average


class TimeLeft:
    """The time of one call: ``seconds`` until this process is stopped; None is no limit.

    Attributes:
        deadline: when that is, on the owner's clock.

    Raises:
        ValueError, TypeError: ``seconds`` is no number of seconds.
    """

    def __init__(self, batch: BatchHandler, seconds: float | None) -> None:
        seconds = _checked(seconds)
        self._batch = batch
        self._clock = batch.guard.clock
        self.deadline = None if seconds is None else self._clock() + seconds
        self._reserve = 0.0 if seconds is None else min(RESERVE, seconds / 10)
        self._any = False  # whether anything has begun

    def is_over(self) -> bool:
        """Return whether another handler would end too late."""
        if self.deadline is None:
            return False
        # Always try the first item: one slow record must not stop all later batches.
        time = self._reserve + (self._batch.typical if self._any else 0.0)
        return self._clock() + time >= self.deadline

    def chunk(self) -> int:
        """Return how many records to claim together."""
        typical = self._batch.typical
        if self.deadline is None or not typical:
            return CLAIMED
        remaining = self.deadline - self._clock() - self._reserve
        return max(1, int(min(CLAIMED, remaining / typical * self._batch.concurrency)))

    def policy(self) -> Policy:
        """Return the guard's policy, whose leases do not outlive this time."""
        guard = self._batch.guard
        return (
            guard.policy if self.deadline is None else within(guard.store, guard.policy, self.deadline - self._clock())
        )

    def limit(self, until: float) -> float:
        """Return ``until``, or an earlier time if the time left ends first, so that the answer can still be sent."""
        return until if self.deadline is None else min(until, self.deadline - self._reserve / 2)

    def begin(self) -> float:
        """Note that a handler begins, and return when."""
        self._any = True
        return self._clock()

    def ended(self, began: float) -> None:
        """Note that a handler that began at ``began`` has ended."""
        took, typical = self._clock() - began, self._batch.typical
        self._batch.typical = took if not typical else typical + _WEIGHT * (took - typical)


def _checked(seconds: object) -> float | None:
    if seconds is None or seconds == math.inf:
        return None
    wrong = f"time_left={seconds!r}: give a number of seconds, or None for no limit"
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(wrong)
    if math.isnan(seconds):
        raise ValueError(wrong)
    return float(seconds)


class Order:
    """Which items may begin, as threads or tasks ask for them.

    Attributes:
        broken: groups with an item that is not done.
        handled: items whose handlers ended and whose ends are not recorded yet, in the order of their ends.
    """

    def __init__(self, time: TimeLeft) -> None:
        self._time = time
        self._process = worker.generation
        self._lock = threading.Lock()
        self._stopped = False
        self._ready: deque[Item] = deque()  # may begin now
        self._rest: dict[int | None, deque[Item]] = {}  # by group: what waits for the item that is ready or runs
        self.broken: set[int] = set()
        self.handled: dict[Item, None] = {}

    @property
    def inherited(self) -> bool:
        """Whether a handler forked this process. If so, all claims are the parent's, and locks may stay held for ever."""
        return self._process != worker.generation

    @property
    def is_over(self) -> bool:
        """Whether nothing may begin any more, now or later."""
        return self._stopped or self._time.is_over()

    @property
    def more(self) -> bool:
        """Whether something may begin now."""
        return bool(self._ready) and not self._stopped

    @property
    def width(self) -> int:
        """How many handlers can run in parallel, at most."""
        return len(self._ready)

    def queue(self, chunk: Sequence[Item]) -> None:
        """Queue the items of a chunk that are claimed, or whose group waits for them."""
        self._ready, self._rest = deque(), {}
        for item in chunk:
            if item.group in self._rest:
                self._rest[item.group].append(item)
            elif item.group is not None:
                self._rest[item.group] = deque()
                self._ready.append(item)
            elif item.claim is not None:
                self._ready.append(item)

    def stop(self) -> None:
        """Begin no more items."""
        self._stopped = True

    def next(self) -> Item | None:
        """Return the next item to handle. None if no item is left, or if the rest must wait for a running item."""
        if self._process != worker.generation:  # inherited
            return None
        with self._lock:
            while self._ready and not self._stopped and not self._time.is_over():
                item = self._ready.popleft()
                if item.group in self.broken:
                    continue
                claim = item.claim
                if claim is None:
                    if self._passes(item):
                        self._go_on(item)
                elif claim.lost:
                    item.trouble = LeaseLost(item.key, "begin its handler")
                    self.break_group(item)
                else:
                    item.begun = True
                    item.began = began = self._time.begin()
                    if claim.story is not None:
                        claim.story.began = began
                    return None if self._process != worker.generation else item  # a signal handler can fork meanwhile
        return None

    def _go_on(self, item: Item) -> None:
        """Let the next item of the group of ``item`` begin."""
        if self._rest.get(item.group):
            self._ready.append(self._rest[item.group].popleft())

    def _passes(self, item: Item) -> bool:
        """Return whether the rest of the group of ``item``, which has no claim of its own, may begin."""
        first = item.first or item
        if first.outcome is not None:
            done = first.outcome.ok
        else:
            done = first.end is not None and first.end.status == COMPLETED  # if not, its group has not come so far
        if not done or item.differs(first):
            self.break_group(item)
            return False
        return True

    def ended(self, item: Item, *, ok: bool) -> None:
        """Note that a handler has ended. After an interrupt it may be called again."""
        with self._lock:
            if item.began is None:
                return  # noted before an interrupt
            if item.end is not None:
                self.handled[item] = None
            self._time.ended(item.began)
            item.began = None
            if ok:
                self._go_on(item)
            else:
                self.break_group(item)

    def break_group(self, item: Item) -> None:
        """Begin no more items of the group of ``item``, which is not done."""
        if item.group is not None:
            self.broken.add(item.group)

    def take(self, items: list[Item]) -> list[Item]:
        """Move the handled items to ``items``, the caller's list, and return it."""
        if self.inherited:
            return items
        with self._lock:
            items += [item for item in self.handled if item not in items]
            self.handled = {}
        return items

    def idle(self, chunk: Sequence[Item]) -> list[Item]:
        """Return the claimed items that have not begun, and never will once the order is stopped."""
        with self._lock:
            return [item for item in chunk if item.claim is not None and not item.begun]
