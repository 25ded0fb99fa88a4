"""A claim's lease: how long its owner can rely on it, and how it is renewed; and what observers are told of the claim.

Its events are noted within the steps, and told while no store is asked and no lock is held.
"""

import itertools
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from onceward.claim.claim import Claim
from onceward.core import retries, steps, worker
from onceward.core.belief import lease_to, margin
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.policy import LONGEST, Policy
from onceward.core.protocol import Outcome, Unbegun
from onceward.core.record import COMPLETED, PARKED, RELEASED, Record
from onceward.core.steps import Lost, Won
from onceward.errors import ForkedClaim, LeaseLost, OncewardError
from onceward.observe.events import ROUTE, Event, Kind, about
from onceward.observe.observers import UNOBSERVED, Observers
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.observe.spans import CallSpan
    from onceward.results.codec import Codec

CURRENT: ContextVar["Lease | None"] = ContextVar("onceward_claim", default=None)
_NUMBERS = itertools.count()
_ENDS: Final[dict[str, Kind]] = {COMPLETED: "completed", RELEASED: "released", PARKED: "parked"}


def innermost() -> "Lease | None":
    """Return the claim whose handler runs here; None if there is none.

    A context can be copied by what outlives the handler, such as the reader of a server's connection.
    """
    claim = CURRENT.get()
    while claim is not None and claim.left:
        claim = claim.outer
    return claim


def leave_current(claim: "Lease | None", outer: "Lease | None") -> None:
    """Make ``outer`` current in the place of a claim. If another one has been entered here since, that stays."""
    if CURRENT.get() is claim:
        CURRENT.set(outer)


class Story:
    """The events of one claim.

    Attributes:
        since: when its key was asked for, on the owner's clock; None when nobody listened then.
        began: when the handler began, on the owner's clock; None when nobody listened then.
        raised: the handler's exception, until it is noted.
        ran: how long the handler ran, in seconds, once it has ended.
        late_since: when the first try to record the end failed.
        span: follows the claim; None if nobody makes spans.
    """

    __slots__ = ("_events", "_observers", "_over", "_route", "began", "late_since", "raised", "ran", "since", "span")

    def __init__(
        self,
        observers: Observers,
        began: float | None,
        since: float | None = None,
        span: "CallSpan | None" = None,
    ) -> None:
        self._observers = observers
        self._events: deque[Event] = deque()
        self._route = ROUTE.get()  # read now: heartbeats, and recording after an answer, have another context
        self._over = False  # whether its end is noted
        self.since = since
        self.began = began
        self.raised: Exception | None = None
        self.ran: float | None = None
        self.late_since: float | None = None
        self.span = span

    def note(self, kind: Kind, record: Record, **more: Any) -> None:
        """Note an event of the key of ``record``."""
        self._events.append(about(kind, record, route=self._route, **more))

    def handled(self, now: float) -> None:
        """Note that the handler has ended."""
        if self.began is not None:
            self.ran = now - self.began

    def ended(self, record: Record, outcome: Outcome, *, now: float, remaining: float) -> None:
        """Note how the claim was ended, ``now`` on the owner's clock, with ``remaining`` seconds of its lease."""
        if self._over:  # an interrupt came after the end was noted
            return
        self._over = True
        kind, error = _ENDS[outcome.status], self.raised
        self.raised = None  # as in EndingClaim.failing
        if kind == "released" and error is not None and not isinstance(outcome, Unbegun):
            kind = "failed"
        if self.ran is None:
            self.handled(now)
        took = None if self.since is None else now - self.since
        self.note(
            kind, record, error=outcome.error if error is None else error, ran=self.ran, left=remaining, took=took
        )
        if self.late_since is not None:
            self.note("settled_late", record, late=now - self.late_since)

    def forget(self) -> None:
        """Forget the noted events: they were rolled back."""
        self._over = False
        self._events.clear()

    def hand_over(self, events: deque[Event]) -> None:
        """Move the noted events to ``events``, to tell them with those of other claims. The claim is over."""
        while self._events:
            event = self._events.popleft()
            if self.span is not None:
                self.span.note(event)
            events.append(event)
        if self.span is not None:
            self.span.over()

    def tell(self, *, over: bool) -> None:
        """Tell the noted events. A heartbeat can do so at the same time. Then the claim may be ``over``."""
        span = self.span
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:
                break
            if span is not None:
                span.note(event)
                over = over or event.kind == "not_recorded"
            self._observers.tell(event)
        if span is not None and over:
            span.over()


class Lease(Claim):
    """What a claim knows of its lease. Methods without an underscore are for guard, heartbeat and transactions."""

    function: object = None  # what runs under it; None if no guard calls it
    exchange: Any = None  # the HTTP exchange that it is for: this says what an answer means
    loop: Any = None  # the event loop that runs its handler; if that is closed, the handler never ends
    thread: int | None = None  # where it was acquired; None if its handler has it in its context
    settled: str | None
    ending = False  # whether its end is being recorded
    deadline: float | None = None  # when this worker will be stopped, on its clock; leases can end then
    # Rolls back the transaction that holds the record. Meanwhile nobody can take over, and no beat can run.
    paused: Callable[[], None] | None
    exclusive = False  # whether that transaction holds the whole ledger
    story: Story | None  # None if nobody listens and nothing is wrong
    goes_on = False  # whether its handler may have begun in an earlier run of its durable execution
    left = False  # whether nothing of its handler runs: what that has started can see it for ever
    _lost = False
    _ended: float | None = None  # when its handler ended, on the owner's clock

    def __init__(
        self,
        store: Store,
        won: Won,
        policy: Policy,
        clock: Clock,
        codec: "Codec",
        observers: Observers = UNOBSERVED,
        asked_at: float | None = None,
        span: "CallSpan | None" = None,
    ) -> None:
        self.store = store
        self.record: Record = won.record
        self._until = won.until
        self.interval = policy.lease / 3 if policy.heartbeat is None else policy.heartbeat  # seconds between heartbeats
        # The next one is an interval after the lease began; `_until` already subtracts the safety margin.
        self._ahead = self.interval - policy.lease + margin(policy.lease, store.resolution)
        self.due = self._until + self._ahead
        self.policy = policy
        self.clock = clock
        self.codec = codec
        self.number = next(_NUMBERS)
        self._process = worker.generation
        self.outer = CURRENT.get() and innermost()
        self.observers = observers
        self.story = None
        if asked_at is not None:  # somebody listens
            self.story = Story(observers, clock(), asked_at, span)
            if span is not None and won.before is not None:
                span.link(won.before.trace)
        self.settled = self.paused = None

    @property
    def lost(self) -> bool:
        """See :class:`Claim`."""
        return self.settled is None and (self._lost or (not self.paused and self.clock() >= self._until))

    @property
    def remaining(self) -> float:
        """See :class:`Claim`."""
        return 0.0 if self._lost else max(0.0, self._until - self.clock())

    @property
    def renewal(self) -> float:
        """Seconds to renew the lease for: its length, or the rest of a longer one, but not beyond the deadline."""
        lease = max(self.policy.lease, self.remaining)
        if self.deadline is None:
            return lease
        return min(lease, lease_to(self.store, self.policy.lease, self.deadline - self.clock()))

    @property
    def over(self) -> bool:
        """Whether there is nothing left to renew."""
        return self.settled is not None or self._lost or self.inherited

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that made the claim. It must not use the claim."""
        return self._process != worker.generation

    def handled(self) -> None:
        """Note that the handler has ended. The time to record its end starts now."""
        self._ended = self.clock()
        if self.story is not None:
            self.story.handled(self._ended)

    def limit(self, leases: int, *, succeeded: bool = False) -> float:
        """Return until when to try to record the end, on the owner's clock, but not after this worker ends.

        That is ``leases`` leases after the handler ended, even with heartbeats. A failure is not tried after the lease. A success
        is, because nobody may have taken over. It has two leases while no heartbeat passes either: the store takes nothing then, so
        it is not the result that it refuses.
        """
        if (since := self._ended) is None:  # handled() was not called, and the first try has just failed
            since = self._ended = self.clock()
        if (story := self.telling).late_since is None:
            story.late_since = self.clock()
        if succeeded:
            is_renewed = self._until > since + self.policy.lease
            limit = since + (leases if is_renewed else 2) * self.policy.lease
        else:
            limit = min(self._until, since + leases * self.policy.lease)
        return limit if self.deadline is None else min(limit, self.deadline)

    def renewed(self, outcome: Won | Lost) -> None:
        """Note the result of a heartbeat."""
        if self.settled is not None or (isinstance(outcome, Won) and outcome.record.beat < self.record.beat):
            return  # this answer is too late
        if isinstance(outcome, Won):
            # A renewal never shortens the lease in the store, so it does not shorten it here.
            self.record, self._until = outcome.record, max(self._until, outcome.until)
            # Not at once, even for a short lease: a beat during an end makes that start again. Nor before a deadline, if the
            # lease lasts until then.
            soon = self.interval / 10
            due = self._until + self._ahead
            if self.deadline is not None and self._until >= self.deadline:
                due = self.deadline - soon
            self.due = max(due, self.clock() + soon)
            if self.story is not None:
                self.story.note("renewed", self.record, left=self.remaining)
        elif self.ending and outcome.record is not None and outcome.record.owner == self.record.owner:
            self.due = self.clock() + self.interval  # not lost: I am ending it now
        else:
            self.lose()

    def reopened(self, record: Record) -> None:
        """Undo an end that was rolled back: ``record`` is current again."""
        self.record, self.settled, self.ending = record, None, False
        if self.story is not None:
            self.story.forget()

    def let_go(self) -> None:
        """Stop using the claim. In the store it stays until its lease ends."""
        self._lost = True

    def lose(self) -> None:
        """Record that this worker has lost the key."""
        if not self._lost:
            self._lost = True
            self.telling.note("lost", self.record)

    @property
    def telling(self) -> Story:
        """The claim's story. It is made even if nobody listened at first: some events must reach a person."""
        if self.story is None:
            self.story = Story(self.observers, None)
        return self.story

    def tell(self) -> None:
        """Tell observers what has happened; never within steps."""
        if self.story is not None:
            self.story.tell(over=self.over)

    def extend(self, seconds: float | None = None) -> None:
        """See :class:`Claim`."""
        try:
            drive(self._extend(seconds), self.store)
        finally:
            self.tell()

    async def extend_async(self, seconds: float | None = None) -> None:
        """See :class:`Claim`."""
        try:
            await drive_async(self._extend(seconds), self.store)
        finally:
            self.tell()

    def _extend(self, seconds: float | None) -> Steps[None]:
        lease = self.policy.lease if seconds is None else float(seconds)
        if not 0 < lease <= LONGEST:
            raise ValueError(f"extend({seconds!r}): give a positive number of seconds, at most {LONGEST:.0e}")
        self.check_usable()

        def beat() -> Steps[list[Won | Lost]]:
            return steps.heartbeat(self.store, [(self.record, lease)], [self.policy], self.clock)

        (outcome,) = yield from retries.retry_transient(beat, self.clock, retries.patience(self.clock))
        self.renewed(outcome)
        if isinstance(outcome, Lost):
            self.lose()
            raise LeaseLost(self.record.key, "extend its lease")

    def store_time(self) -> float:
        """Return the store's time (seconds), as far as this worker knows it. It is for people, and decides nothing."""
        return self.record.lease_until - margin(self.policy.lease, self.store.resolution) - self._until + self.clock()

    def check_usable(self) -> None:
        """Raise OncewardError if the claim is ended, inherited by a fork, or held by a transaction."""
        self._check_free()
        self._check_open()

    def check_own(self) -> None:
        """Raise ForkedClaim in a process that was forked from the one that made the claim."""
        if self._process != worker.generation:
            raise ForkedClaim(self.record.key)

    def _check_free(self) -> None:
        if self.paused:
            raise OncewardError(
                f"{self.record.key}: a transaction holds this claim: set the transaction's result, or leave its block first"
            )

    def _check_open(self) -> None:
        if self._process != worker.generation:
            self.check_own()
        if self.settled is not None:
            raise OncewardError(f"{self.record.key}: this claim was ended before ({self.settled})")
