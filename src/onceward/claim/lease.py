"""A claim's lease: how long its owner believes in it, and how it is renewed."""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceward.claim import forks
from onceward.claim.claim import Claim
from onceward.claim.running import CURRENT
from onceward.claim.story import Story
from onceward.core import steps
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.policy import Policy
from onceward.core.record import Record
from onceward.core.steps import Lost, Won
from onceward.errors import ForkedClaim, LeaseLost, OncewardError
from onceward.observe.observers import UNOBSERVED, Observers
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.results.codec import Codec

_NUMBERS = itertools.count()


class Lease(Claim):
    """What a claim knows of its lease. The methods without an underscore are for the guard, the heartbeat and transactions."""

    __slots__ = (
        "_ahead",
        "_ended",
        "_ending",
        "_lost",
        "_process",
        "_until",
        "clock",
        "codec",
        "deadline",
        "due",
        "interval",
        "number",
        "observers",
        "outer",
        "paused",
        "policy",
        "settled",
        "store",
        "story",
    )

    def __init__(
        self,
        store: Store,
        won: Won,
        policy: Policy,
        clock: Clock,
        codec: "Codec",
        observers: Observers = UNOBSERVED,
        *,
        told: bool = False,
    ) -> None:
        self.store = store
        self.record: Record = won.record
        self._until = won.until
        self.interval = policy.beat_every  # seconds between heartbeats
        # The next one, on the owner's clock: an interval after the lease began, of which the belief is short by the margin.
        self._ahead = self.interval - policy.lease + steps.margin(store, policy)
        self.due = self._until + self._ahead
        self.policy = policy
        self.clock = clock
        self.codec = codec
        self._lost = False
        self.number = next(_NUMBERS)
        self.settled: str | None = None
        self._process = forks.generation
        self._ending = False
        self._ended: float | None = None  # when its handler ended, on the owner's clock
        self.deadline: float | None = None  # when this worker will be stopped, on its clock: no lease need outlive it
        # While a transaction holds the store's write lock, what rolls it back: nobody can take over, and no beat gets through.
        self.paused: Callable[[], None] | None = None
        self.outer = CURRENT.get()
        self.observers = observers
        self.story = Story(observers, clock()) if told else None  # None while nobody listens and nothing is wrong

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
        """Seconds that a heartbeat renews it for: its lease, or what was left of a longer one; not beyond the deadline."""
        wanted = max(self.policy.lease, self.remaining)
        if self.deadline is None:
            return wanted
        return min(wanted, steps.lease_to(self.store, self.policy.lease, self.deadline - self.clock()))

    @property
    def over(self) -> bool:
        """Whether there is nothing left to renew."""
        return self.settled is not None or self._lost or self.inherited

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that made the claim, and has no right to it."""
        return self._process != forks.generation

    def handled(self) -> None:
        """Say that its handler has ended: the time to record that runs from now on."""
        self._ended = self.clock()
        if self.story is not None:
            self.story.handled(self._ended)

    def limit(self, leases: int) -> float:
        """Until when to try to record its end, on the owner's clock.

        That is so many leases after its handler ended, whatever heartbeats do; and never longer than the lease lasts, or
        than this worker does.
        """
        if (since := self._ended) is None:  # nobody has said so, and the first try has just failed
            since = self._ended = self.clock()
        if (story := self.telling).late_since is None:
            story.late_since = self.clock()
        limit = min(self._until, since + leases * self.policy.lease)
        return limit if self.deadline is None else min(limit, self.deadline)

    def renewed(self, outcome: Won | Lost) -> None:
        """Take in what a heartbeat found."""
        if self.settled is not None or (isinstance(outcome, Won) and outcome.record.beat < self.record.beat):
            return  # an answer that comes too late
        if isinstance(outcome, Won):
            # A renewal never lowers what stands in the store, so neither what I believe.
            self.record, self._until = outcome.record, max(self._until, outcome.until)
            # Not at once, also when the time left allows only for a short lease: an end takes a moment, and a beat in between
            # makes it begin anew.
            self.due = max(self._until + self._ahead, self.clock() + self.interval / 10)
            if self.story is not None:
                self.story.note("renewed", self.record, left=self.remaining)
        elif self._ending and outcome.record is not None and outcome.record.owner == self.record.owner:
            self.due = self.clock() + self.interval  # I am ending it at this moment, which is not losing it
        else:
            self.lose()

    def reopened(self, record: Record) -> None:
        """Take back an end that was rolled back: the claim stands as ``record`` again."""
        self.record, self.settled, self._ending = record, None, False
        if self.story is not None:
            self.story.forget()

    def let_go(self) -> None:
        """Believe in it no more; in the store it stays to the end of its lease."""
        self._lost = True

    def lose(self) -> None:
        """Take in that the key has gone on without this worker."""
        if not self._lost:
            self._lost = True
            self.telling.note("lost", self.record)

    @property
    def telling(self) -> Story:
        """What there is to tell of it, also when nobody listened in the beginning: a person must hear of some things."""
        if self.story is None:
            self.story = Story(self.observers, None)
        return self.story

    def tell(self) -> None:
        """Tell observers what has happened; never within steps."""
        if self.story is not None:
            self.story.tell()

    def ending(self) -> None:
        """Say that its end is on its way, together with those of others."""
        self._ending = True

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
        if not 0 < lease < float("inf"):
            raise ValueError(f"extend({seconds!r}): give a positive number of seconds")
        self._check_free()
        self._check_open()

        def beat() -> Steps[list[Won | Lost]]:
            return steps.heartbeat(self.store, [(self.record, lease)], [self.policy], self.clock)

        limit = self.clock() + steps.CLAIM_PATIENCE
        try:
            (outcome,) = yield from beat()
        except OncewardError as error:  # asked again, or raised there
            (outcome,) = yield from steps.persist(error, beat, self.clock, lambda: limit)
        self.renewed(outcome)
        if isinstance(outcome, Lost):
            self.lose()
            raise LeaseLost(self.record.key, "extend its lease")

    def check_own(self) -> None:
        """Raise ForkedClaim in a process that was forked from the one that made the claim."""
        if self._process != forks.generation:
            raise ForkedClaim(self.record.key)

    def _check_free(self) -> None:
        if self.paused:
            raise OncewardError(
                f"{self.record.key}: a transaction holds this claim and will end it; set the transaction's result, or raise"
            )

    def _check_open(self) -> None:
        if self._process != forks.generation:
            self.check_own()
        if self.settled is not None:
            raise OncewardError(f"{self.record.key}: this claim was ended before ({self.settled})")
