"""One call of a batch, as data: its records, the order in which they may begin, and the outcome of each.

Nothing here does I/O or calls a handler: ``batch.py`` does both, sync and async, and ``recorder.py`` records the ends.
"""

import math
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from onceward.batch.outcomes import BatchOutcome, Item, Status
from onceward.batch.telling import tell, warn
from onceward.claim import forks, heartbeat
from onceward.claim.replays import refusal
from onceward.core import many, steps
from onceward.core.drivers import Steps
from onceward.core.many import Claimed
from onceward.core.protocol import Outcome as End
from onceward.core.protocol import Verdict
from onceward.core.record import COMPLETED, PARKED, RELEASED, Elsewhere
from onceward.core.steps import Bid, Lost, Refused, Replay, Settled, Won
from onceward.errors import LeaseLost, Mismatch, OncewardError, ResultNotRecorded, ResultUnavailable
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.events import Event, Kind, about
from onceward.results.firmly import firmly
from onceward.results.outcomes import NO_TIME

if TYPE_CHECKING:
    from onceward.batch.batch import Batch

CLAIMED: Final = 100  # records claimed together: the size of one DynamoDB batch read
RESERVE: Final = 1.0  # seconds of the time left (at most a tenth of it) that are kept for recording
_WEIGHT: Final = 0.2  # of the newest duration in the moving average
_REFUSED: Final[dict[Verdict, Status]] = {
    Verdict.BUSY: "busy",
    Verdict.PARKED: "parked",
    Verdict.MISMATCH: "mismatch",
}
_TOLD: Final = 3  # errors that an interrupt's notes name; the log has all
_ENDED: Final[dict[str, Status]] = {COMPLETED: "done", RELEASED: "failed", PARKED: "parked"}


class Run:
    """One call of a batch.

    Attributes:
        pending: items whose handlers ended and whose ends are not recorded yet. Get them with :meth:`take`.

    Raises:
        ValueError, TypeError: ``time_left`` is no number of seconds.
    """

    def __init__(self, batch: "Batch", records: Sequence[Any], time_left: float | None) -> None:
        self._batch = batch
        self._guard = batch.guard
        self._clock = batch.guard.clock
        self._told = batch.guard.observers.are_listening()
        self._events: deque[Event] = deque()  # see tell()
        self._asked = 0.0  # when the chunk was claimed
        self._process = forks.generation
        time_left = _checked(time_left)
        self._deadline = None if time_left is None else self._clock() + time_left
        self._reserve = 0.0 if time_left is None else min(RESERVE, time_left / 10)
        self._lock = threading.Lock()
        self._stopped = False
        self._any = False  # whether anything has begun
        self._groups: dict[Hashable, int] = {}  # the caller's value: the number here
        self._broken: set[int] = set()  # groups with an item that is not done
        self._chunk: list[Item] = []
        self._lanes: deque[deque[Item]] = deque()  # may begin now: each a group or a single item
        self._waiting: dict[int, deque[Item]] = {}  # by index of a running item: the rest of its group
        self._began: dict[int, float] = {}
        self.pending: dict[Item, None] = {}  # in the order of their ends
        self._items = [self._read(index, record) for index, record in enumerate(records)]
        firsts: dict[str, Item] = {}
        for item in self._items:
            if item.outcome is None and firsts.setdefault(item.key, item) is not item:
                item.first = firsts[item.key]

    def _read(self, index: int, record: object) -> Item:
        item = Item(index, record)
        try:
            self._fill(item)
        except Exception as error:  # a user's callable may raise anything; the other records go on
            failed = error
        else:
            return item
        lasting = firmly(self._fill, item, failed)
        self._report(item, BatchOutcome("malformed", record, None, None, lasting))
        return item

    def _fill(self, item: Item) -> None:
        if self._batch.group is not None:
            group = self._batch.group(item.record)
            if group is not None:
                item.group = self._groups.setdefault(group, len(self._groups))
        item.args, key, item.fingerprint = self._batch.read(item.record)
        item.key = ledger_key(self._batch.name, key)

    # --- claiming ---------------------------------------------------------------------------------------------------

    def chunks(self) -> Iterator[list[Item]]:
        """Yield the items to claim together, chunk by chunk, until the time is up or :meth:`stop` is called."""
        start = 0
        while start < len(self._items) and not self._stopped and not self._late():
            size = CLAIMED
            if self._deadline is not None and self._batch.typical:
                left = self._deadline - self._clock() - self._reserve
                size = max(1, int(min(size, left / self._batch.typical * self._batch.concurrency)))
            self._chunk = self._items[start : start + size]
            start += size
            yield [i for i in self._chunk if i.outcome is None and i.first is None and i.group not in self._broken]

    def bids(self, chunk: list[Item]) -> list[Bid]:
        """Return the bids for a chunk. An item that cannot be bid for gets its outcome and leaves the chunk."""
        self._asked = self._clock()
        policy = self._guard.policy
        if self._deadline is not None:
            policy = steps.within(self._guard.store, policy, self._deadline - self._clock())
        bids = []
        for item in list(chunk):
            try:
                bids.append(self._guard.bid(item.key, item.fingerprint)._replace(policy=policy))
            except OncewardError as error:  # the caller already handles this key
                self._report(item, BatchOutcome("failed", item.record, item.key, None, error))
                chunk.remove(item)
        return bids

    def claimed(self, chunk: list[Item], bids: list[Bid], answers: list[Claimed]) -> None:
        """Process the answers to the claims, and queue the items that may begin."""
        for item, answer, bid in zip(chunk, answers, bids, strict=True):
            if isinstance(answer, Refused) or (self._told and not isinstance(answer, Exception)):
                self._events += self._guard.events_of(answer, self._asked)
            if isinstance(answer, Won):
                item.claim = claim = self._guard.held(answer, bid.policy, told=self._told)
                claim.deadline = self._deadline
                heartbeat.HEARTBEAT.watch(claim)
            elif self._batch.values and isinstance(answer, Replay) and type(answer.record.result) is Elsewhere:
                item.replay = answer  # reported after its result is fetched
            else:
                self._report(item, self._answered(item, answer))
        lanes: dict[object, deque[Item]] = {}
        for item in self._chunk:
            if item.group is not None or item.claim is not None:
                lanes.setdefault(item if item.group is None else item.group, deque()).append(item)
        self._lanes = deque(lanes.values())

    def fetching(self) -> Steps[None]:
        """Fetch the results that are kept elsewhere. Meanwhile heartbeats renew the claims."""
        away: Exception | None = None
        for item in self._chunk:
            if item.replay is None or item.outcome is not None:
                continue
            try:
                if away is not None or self._late():
                    raise away or ResultUnavailable(item.key, "no time was left to fetch it")
                record = yield from steps.fetched(item.replay.record, self._clock)
            except OncewardError as error:  # still replayed: it was done, even if its result cannot be fetched
                away = error if getattr(error, "transient", False) else None  # do not wait again for each other item
                self._report(item, BatchOutcome("replayed", item.record, item.key, None, error))
            else:
                self._report(item, self._answered(item, item.replay._replace(record=record)))

    def _answered(self, item: Item, answer: Claimed) -> BatchOutcome:
        """Return the outcome of an item that was not won."""
        if isinstance(answer, Exception):
            return BatchOutcome("failed", item.record, item.key, None, answer)
        if isinstance(answer, Refused):
            why = refusal(answer, self._guard.policy)
            return BatchOutcome(_REFUSED.get(answer.verdict, "failed"), item.record, item.key, None, why)
        assert isinstance(answer, Replay)
        item.replay = answer
        try:
            value = self._guard.replays.recorded(answer.record)
        except Exception as error:  # a recorded final exception can be of any type
            return BatchOutcome("replayed", item.record, item.key, None, error)
        return BatchOutcome("replayed", item.record, item.key, value)

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """How many handlers can run in parallel, at most."""
        return len(self._lanes)

    @property
    def inherited(self) -> bool:
        """Whether a handler forked this process. If so, all claims are the parent's, and locks may stay held for ever."""
        return self._process != forks.generation

    @property
    def more(self) -> bool:
        """Whether something may begin now."""
        return bool(self._lanes) and not self._stopped

    def next(self) -> Item | None:
        """Return the next item to handle. None if no item is left, or if the rest must wait for a running item."""
        if self.inherited:
            return None
        with self._lock:
            while self.more and not self._late():
                lane = self._lanes.popleft()
                while lane:
                    item = lane.popleft()
                    if item.claim is not None and item.claim.lost:
                        item.trouble = LeaseLost(item.key, "begin its handler")
                        self._stop_group(item)
                        break
                    if item.claim is not None:
                        self._any = item.begun = True
                        self._began[item.index] = began = self._clock()
                        if item.claim.story is not None:
                            item.claim.story.began = began
                        if lane:
                            self._waiting[item.index] = lane
                        return item
                    if not self._passes(item):
                        break
        return None

    def _passes(self, item: Item) -> bool:
        """Return whether the rest of the group of ``item``, which has no claim of its own, may begin."""
        first = item.first or item
        if first.outcome is not None:
            done = first.outcome.ok
        else:
            done = first.end is not None and first.end.status == COMPLETED  # if not, its group has not come so far
        if not done or _differ(item, first):
            self._stop_group(item)
            return False
        return True

    def handled(self, item: Item, value: object, error: Exception | None) -> None:
        """Note how a handler ended. After an interrupt it may be called again."""
        claim = item.held
        item.value, item.error = value, error
        if error is not None and claim.completed_in_vain(error):
            claim.let_go()
            self._leave_claimed(item, error)
            return
        if item.end is None and claim.settled is None:
            if error is not None and claim.paused is not None:
                claim.paused()  # an interrupt kept its transaction from ending
            claim.handled()
            item.end = claim.completion(value) if error is None else claim.failure(error)
        status = claim.settled if item.end is None else item.end.status
        with self._lock:
            if item.index in self._began:
                if item.end is not None:
                    self.pending[item] = None
                self._went_on(item, ok=status == COMPLETED)
        if item.end is None and item.outcome is None:
            self._settled(item)

    def dropped(self, item: Item) -> None:
        """Leave an interrupted handler's key claimed to the end of its lease, because its work may still go on."""
        if item.held.settled is not None:  # the handler ended the claim before
            self.handled(item, None, None)
            return
        interrupted = OncewardError(
            f"{item.key}: its handler was interrupted, and work that it started may still go on; the key stays claimed to the "
            "end of its lease, and is then taken over"
        )
        self._leave_claimed(item, interrupted)

    def _leave_claimed(self, item: Item, error: Exception) -> None:
        self._guard.drop(item.held)
        with self._lock:
            self._went_on(item, ok=False)
        if item.outcome is None:
            self._report(item, BatchOutcome("failed", item.record, item.key, None, error))

    def stop(self) -> None:
        """Begin no more items."""
        self._stopped = True

    def _went_on(self, item: Item, *, ok: bool) -> None:
        began = self._began.pop(item.index, None)
        if began is None:
            return  # done before an interrupt
        took = self._clock() - began
        typical = self._batch.typical
        self._batch.typical = took if not typical else typical + _WEIGHT * (took - typical)
        lane = self._waiting.pop(item.index, None)
        if ok and lane is not None:
            self._lanes.append(lane)
        elif not ok:
            self._stop_group(item)

    def _stop_group(self, item: Item) -> None:
        if item.group is not None:
            self._broken.add(item.group)

    def _late(self) -> bool:
        if self._deadline is None:
            return False
        # Always try the first item: one slow record must not stop all later batches.
        wanted = self._reserve + (self._batch.typical if self._any else 0.0)
        return self._clock() + wanted >= self._deadline

    # --- recording --------------------------------------------------------------------------------------------------

    def take(self, items: list[Item]) -> list[Item]:
        """Move the pending items to ``items``, the caller's list, and return it."""
        if self.inherited:
            return items
        with self._lock:
            items += [item for item in self.pending if item not in items]
            self.pending = {}
        return items

    def settling(self, items: Sequence[Item]) -> Steps[None]:
        """Record how handlers ended, in one exchange if the store can; then report. You can drive it again after an interrupt."""
        if self.inherited:
            return
        asked = list(items)
        todo = [i for i in asked if i.outcome is None and i.held.settled is None and i.trouble is None]
        if todo:
            yield from self._ending(todo)
        for item in asked:
            if item.outcome is None:
                self._settled(item)

    def _ending(self, todo: list[Item]) -> Steps[None]:
        for item in todo:
            item.held.ending()
        late = yield from self._end_together(todo, leases=1)
        if late:
            # One lease was not enough: try without the results, because completions matter more.
            late = yield from self._end_together([item for item, _ in late], leases=2)
        for item, error in late:
            item.trouble = ResultNotRecorded(item.key, item.value, str(error)) if item.error is None else error
            item.held.telling.note("not_recorded", item.held.record, error=error)

    def _end_together(self, todo: list[Item], leases: int) -> Steps[list[tuple[Item, OncewardError]]]:
        """End claims, in one exchange if the store can. Return those not recorded in time, and why."""
        end_of = _bare if leases > 1 else _end
        ends = [((claim := item.held).record, end_of(item), claim.policy) for item in todo]
        until = lambda: self._limit(max(item.held.limit(leases) for item in todo))
        answers: list[Settled | Lost | OncewardError | None]
        try:
            answers = [*(yield from many.end_many(self._guard.store, ends, self._clock, until))]
        except OncewardError as error:
            answers = [error] * len(todo)
        late = []
        for item, (_, end, _), answer in zip(todo, ends, answers, strict=True):
            if isinstance(answer, OncewardError):
                late.append((item, answer))
                continue
            try:
                if answer is not None:
                    item.held.ended(answer, end, "record its result")
                else:
                    yield from self._end_alone(item, end)
            except OncewardError as error:  # the other records go on
                item.trouble = error
        return late

    def _end_alone(self, item: Item, end: End) -> Steps[None]:
        if item.held.settled is not None:
            return  # an interrupted call already did
        elif item.error is None:
            yield from item.held.completing(end, item.value)
        else:
            yield from item.held.leaving(end, "record how it failed")

    def _limit(self, until: float) -> float:
        """Return ``until``, or an earlier time if the time left ends first, so that the answer can still be sent."""
        return until if self._deadline is None else min(until, self._deadline - self._reserve / 2)

    def _settled(self, item: Item) -> None:
        claim = item.held
        heartbeat.HEARTBEAT.forget(claim)
        if claim.story is not None:
            claim.story.hand_over(self._events)
        error, status = item.error, _ENDED.get(claim.settled or "", "failed")
        if item.trouble is not None:
            status = "failed"
            if error is None:
                error = item.trouble
            else:
                error.add_note(f"onceward: and then {item.trouble}")
        elif status == "done":
            warn(claim)
        self._report(item, BatchOutcome(status, item.record, item.key, item.value, error))

    def giving_back(self) -> Steps[None]:
        """Give back the claims of items that have not begun."""
        if self.inherited:
            return
        with self._lock:  # inside the lock, an item has begun or never will
            idle = [i for i in self._chunk if i.claim is not None and not i.begun]
        claims = []
        for item in idle:
            heartbeat.HEARTBEAT.forget(item.held)
            item.held.ending()
            claims.append((item.held.record, item.held.policy))
        if claims:
            limit = self._limit(self._clock() + steps.CLAIM_PATIENCE)
            yield from many.give_back(self._guard.store, claims, self._clock, lambda: limit)
            for item in idle:
                item.held.let_go()
                if self._told:
                    self._events.append(about("released", item.held.record))

    def abandon(self) -> None:
        """Stop renewing items marked as begun whose handlers an interrupt prevented. Call it when no handler runs."""
        for item in self._chunk:
            if item.begun and item.end is None and item.outcome is None:
                self._guard.drop(item.held)

    def note(self, interrupt: BaseException) -> None:
        """Add notes about unrecorded ends to ``interrupt``, which is raised instead of the outcomes."""
        for trouble in [item.trouble for item in self._chunk if item.begun and item.trouble is not None][:_TOLD]:
            interrupt.add_note(f"onceward: and then {trouble}")

    def tell(self) -> None:
        """Tell observers what happened. Call it without a lock and outside store requests."""
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:  # another thread was faster
                return
            self._guard.observers.tell(event)

    # --- telling ----------------------------------------------------------------------------------------------------

    def finished(self) -> list[BatchOutcome]:
        """Return all outcomes. A duplicate gets the outcome of its first; an item that has not begun is deferred."""
        outcomes = []
        for item in self._items:
            met = item.outcome
            if met is None:
                deferred = item.first is None or item.first.outcome is None
                met = (
                    BatchOutcome("deferred", item.record, item.key, None, item.trouble)
                    if deferred
                    else self._shared(item, cast("Item", item.first))
                )
                self._report(item, met)
            outcomes.append(met)
        self.tell()
        return outcomes

    def _shared(self, item: Item, first: Item) -> BatchOutcome:
        met = first.outcome
        assert met is not None
        other = _differ(item, first)
        if not met.ok:  # says nothing about a different input
            return BatchOutcome("deferred", item.record, item.key) if other else met._replace(record=item.record)
        before = first.replay or Replay(first.held.record, None)
        if self._told:
            self._events.append(about("mismatch" if other else "replayed", before.record))
        if other:
            return BatchOutcome("mismatch", item.record, item.key, None, Mismatch(item.key))
        return self._answered(item, before)

    def _report(self, item: Item, outcome: BatchOutcome) -> None:
        item.outcome = outcome
        if self._told and outcome.status in {"malformed", "deferred"}:
            kind: Kind = "malformed" if outcome.status == "malformed" else "deferred"
            self._events.append(Event(kind, outcome.key, self._batch.name, error=outcome.error))
        tell(outcome, self._batch.heard)


def _end(item: Item) -> End:
    assert item.end is not None
    return item.end


def _bare(item: Item) -> End:
    end = _end(item)
    return end if end.result is None else NO_TIME


def _checked(time_left: object) -> float | None:
    """Return the time left, None for no limit. Raises ValueError or TypeError if it is not valid."""
    if time_left is None or time_left == math.inf:
        return None
    if isinstance(time_left, bool) or not isinstance(time_left, int | float):
        raise TypeError(f"time_left={time_left!r}: give a number of seconds, or None for no limit")
    if math.isnan(time_left):
        raise ValueError(f"time_left={time_left!r}: give a number of seconds, or None for no limit")
    return float(time_left)


def _differ(item: Item, first: Item) -> bool:
    """Return whether two records of one key have different inputs."""
    return None not in {item.fingerprint, first.fingerprint} and item.fingerprint != first.fingerprint
