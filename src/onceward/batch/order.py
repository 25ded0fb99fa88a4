"""The order in which the records of a batch begin: those of one group one after another, all others at once."""

import threading
from collections import deque
from collections.abc import Sequence

from onceward.batch.outcomes import Item
from onceward.batch.time_left import TimeLeft
from onceward.core import worker
from onceward.core.record import COMPLETED
from onceward.errors import LeaseLost


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
        self._lanes: deque[deque[Item]] = deque()  # may begin now: each a group or a single item
        self._waiting: dict[Item, deque[Item]] = {}  # by a running item: the rest of its group
        self._began: dict[Item, float] = {}
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
        return bool(self._lanes) and not self._stopped

    @property
    def width(self) -> int:
        """How many handlers can run in parallel, at most."""
        return len(self._lanes)

    def queue(self, chunk: Sequence[Item]) -> None:
        """Queue the items of a chunk that are claimed, or whose group waits for them."""
        lanes: dict[object, deque[Item]] = {}
        for item in chunk:
            if item.group is not None or item.claim is not None:
                lanes.setdefault(item if item.group is None else item.group, deque()).append(item)
        self._lanes = deque(lanes.values())

    def stop(self) -> None:
        """Begin no more items."""
        self._stopped = True

    def next(self) -> Item | None:
        """Return the next item to handle. None if no item is left, or if the rest must wait for a running item."""
        if self._process != worker.generation:  # inherited
            return None
        with self._lock:
            while self._lanes and not self._stopped and not self._time.is_over():
                lane = self._lanes.popleft()
                while lane and lane[0].group not in self.broken:
                    item = lane.popleft()
                    if item.claim is None:
                        if self._passes(item):
                            continue
                        break
                    if item.claim.lost:
                        item.trouble = LeaseLost(item.key, "begin its handler")
                        self.break_group(item)
                        break
                    item.begun = True
                    self._began[item] = began = self._time.begin()
                    if item.claim.story is not None:
                        item.claim.story.began = began
                    if lane:
                        self._waiting[item] = lane
                    return None if self._process != worker.generation else item  # a signal handler can fork meanwhile
        return None

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
            if item not in self._began:
                return  # noted before an interrupt
            if item.end is not None:
                self.handled[item] = None
            self._time.ended(self._began.pop(item))
            lane = self._waiting.pop(item, None)
            if ok and lane is not None:
                self._lanes.append(lane)
            elif not ok:
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
