"""What a running handler may ask of its claim, and how a claim ends."""

import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from onceward.claim import forks
from onceward.claim.called import NotBegun
from onceward.core import protocol, steps
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async, settle, settle_async
from onceward.core.policy import Policy
from onceward.core.protocol import Outcome
from onceward.core.record import Record
from onceward.core.steps import Lost, Settled, Won
from onceward.errors import ForkedClaim, LeaseLost, OncewardError, ResultNotRecorded
from onceward.keys.ledger_keys import derived_key
from onceward.results.outcomes import (
    GivenBack,
    completion,
    describe,
    final,
    noted,
    storable,
    warn_of_missing,
    without_result,
)
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.claim.transaction import Transaction
    from onceward.results.codec import Codec

T = TypeVar("T")
C = TypeVar("C")
_NUMBERS = itertools.count()
CURRENT: ContextVar["Claim | None"] = ContextVar("onceward_claim", default=None)


def current() -> "Claim":
    """Return the claim of the handler that is running here.

    Raises:
        OncewardError: no guarded handler is running in this context.
    """
    claim = CURRENT.get()
    if claim is None:
        raise OncewardError("no claim is held here: onceward.current() works inside a guarded handler")
    return claim


class Claim:
    """The right to run the handler for one key.

    You get one from :func:`current`, from ``with once.claim(key)``, from ``once.acquire(key)``, or in a handler's
    parameter that is annotated with this class.

    Attributes:
        record: the record as this claim last wrote it; ``record.key`` is the key as it stands in the ledger.
    """

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_codec",
        "_ended",
        "_ending",
        "_lost",
        "_process",
        "_until",
        "clock",
        "deadline",
        "due",
        "interval",
        "number",
        "outer",
        "paused",
        "policy",
        "record",
        "settled",
        "store",
    )

    def __init__(self, store: Store, won: Won, policy: Policy, clock: Clock, codec: "Codec") -> None:
        self.store = store
        self.record: Record = won.record
        self._until = won.until
        self.interval = policy.beat_every  # seconds between heartbeats
        # The next one, on the owner's clock: an interval after the lease began, of which the belief is short by the margin.
        self._ahead = self.interval - policy.lease + steps.margin(store, policy)
        self.due = self._until + self._ahead
        self.policy = policy
        self.clock = clock
        self._codec = codec
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

    # --- what a handler may ask -----------------------------------------------------------------------------------

    @property
    def fence(self) -> int:
        """The fencing token: larger than that of every earlier claim on this key. Hand it to a downstream that checks."""
        return self.record.fence

    @property
    def attempt(self) -> int:
        """Which attempt on this key this is, from 1."""
        return self.record.attempts

    @property
    def lost(self) -> bool:
        """Whether the lease is over, as far as this worker can know: it stops believing before anyone may take over."""
        return self.settled is None and (self._lost or (not self.paused and self.clock() >= self._until))

    @property
    def remaining(self) -> float:
        """Seconds of lease that are left, without another renewal; 0 when it is over."""
        return 0.0 if self._lost else max(0.0, self._until - self.clock())

    def key(self, *parts: object) -> str:
        """Return a key derived from this claim's: a UUID that is the same on every attempt.

        Hand it to a downstream that takes idempotency keys.

        Args:
            *parts: what the downstream call is for, as in ``claim.key("refund")``; str, int, UUID, bytes or tuples.
        """
        return derived_key(self.record.key, parts)

    def extend(self, seconds: float | None = None) -> None:
        """Renew the lease now.

        Args:
            seconds: how long it shall last from now, at least; None is the guard's lease. A renewal never shortens a lease.

        Raises:
            LeaseLost: the key has gone on without this worker.
            ForkedClaim: this process was forked from the one that made the claim.
            StoreError: the store could not be reached; the lease stands as it was.
        """
        drive(self._extend(seconds), self.store)

    async def extend_async(self, seconds: float | None = None) -> None:
        """As :meth:`extend`, for a coroutine."""
        await drive_async(self._extend(seconds), self.store)

    # --- how it ends ----------------------------------------------------------------------------------------------

    def complete(self, result: object = None) -> None:
        """Record ``result`` for good. Duplicates get it from now on.

        Raises:
            LeaseLost: the key has gone on without this worker; nothing was recorded.
            ResultNotRecorded: the store stayed away until the lease was over, or for two leases while it was renewed.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before.
        """
        self._begin_end()
        settle(self.success(result), self.store)
        self.warn()

    async def complete_async(self, result: object = None) -> None:
        """As :meth:`complete`, for a coroutine."""
        self._begin_end()
        await settle_async(self.success(result), self.store)
        self.warn()

    def release(self, error: str | None = None) -> None:
        """Give the key back for a retry; ``error`` is kept in the record for a person to read.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StoreError: the store stayed away until the lease was over, or for two leases while it was renewed.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before.
        """
        self._begin_end()
        settle(lambda: self.leaving(protocol.released(self._noted(error)), "release it"), self.store)

    async def release_async(self, error: str | None = None) -> None:
        """As :meth:`release`, for a coroutine."""
        self._begin_end()
        await settle_async(lambda: self.leaving(protocol.released(self._noted(error)), "release it"), self.store)

    def park(self, reason: str | None = None) -> None:
        """Stop retrying the key until an operator clears or unparks it. Raises as :meth:`release` does."""
        self._begin_end()
        settle(lambda: self.leaving(protocol.parked(self._noted(reason)), "park it"), self.store)

    async def park_async(self, reason: str | None = None) -> None:
        """As :meth:`park`, for a coroutine."""
        self._begin_end()
        await settle_async(lambda: self.leaving(protocol.parked(self._noted(reason)), "park it"), self.store)

    def transaction(self, connection: C) -> "Transaction[C]":
        """Return a context whose writes on ``connection`` commit together with this claim's completion.

        Do the slow work before it: while the context is open, it holds the file's write lock.

        Args:
            connection: your own, to the ledger's database, in no transaction.
        """
        from onceward.claim.transaction import Transaction

        return Transaction.of_claim(self, connection)

    def transact(self, writes: "Sequence[object]", result: T = None) -> T:  # type: ignore[assignment]  # T is NoneType then
        """Commit ``writes`` together with this claim's completion: all of them, or nothing. For ledgers in DynamoDB.

        Do it last: return what it returns. A worker that has lost its claim has its writes refused with its completion.

        Args:
            writes: up to 99, as in boto3's ``transact_write_items(TransactItems=writes)``: each a dict of one of Put,
                Update, Delete and ConditionCheck, on any tables of the ledger's region, with typed values ``{"S": "..."}``.
            result: what duplicates get.

        Returns:
            ``result``.

        Raises:
            EffectRefused: the condition of one of the writes does not hold; the claim stands, so the key can still be
                completed, released or parked, and a handler that lets the error go on gives it back.
            LeaseLost: the key has gone on without this worker.
            StoreError: the store refused the request, or stayed away until the lease was over; in the second case the next
                delivery finds out whether the writes were made.
            TypeError, ValueError: this ledger cannot do that, or a write has not this form.
        """
        from onceward.stores.capabilities import TRANSACT

        commit = TRANSACT.needed(self.store)(writes)
        self._begin_end()
        settle(self.success(result, commit), self.store)
        self.warn()
        return result

    async def transact_async(self, writes: "Sequence[object]", result: T = None) -> T:  # type: ignore[assignment]  # as above
        """As :meth:`transact`, for a coroutine."""
        from onceward.stores.capabilities import TRANSACT

        commit = TRANSACT.needed(self.store)(writes)
        self._begin_end()
        await settle_async(self.success(result, commit), self.store)
        self.warn()
        return result

    # --- for the guard, the heartbeat and the transaction ---------------------------------------------------------

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

    def limit(self, leases: int) -> float:
        """Until when to try to record its end, on the owner's clock.

        That is so many leases after its handler ended, whatever heartbeats do; and never longer than the lease lasts, or
        than this worker does.
        """
        if (since := self._ended) is None:  # nobody has said so, and the first try has just failed
            since = self._ended = self.clock()
        limit = min(self._until, since + leases * self.policy.lease)
        return limit if self.deadline is None else min(limit, self.deadline)

    def _one_lease(self) -> float:
        return self.limit(1)

    def _two_leases(self) -> float:
        return self.limit(2)

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
        elif self._ending and outcome.record is not None and outcome.record.owner == self.record.owner:
            self.due = self.clock() + self.interval  # I am ending it at this moment, which is not losing it
        else:
            self._lost = True

    def reopened(self, record: Record) -> None:
        """Take back an end that was rolled back: the claim stands as ``record`` again."""
        self.record, self.settled, self._ending = record, None, False

    def let_go(self) -> None:
        """Believe in it no more; in the store it stays to the end of its lease."""
        self._lost = True

    def success(self, result: object, commit: steps.Commit | None = None) -> Callable[[], Steps[None]]:
        """Return what makes the steps that record ``result``; what is interrupted twice while it is encoded goes without."""
        outcome: Outcome | None = None
        tries = 0
        self._ended = None  # an earlier try to end it does not count

        def recording() -> "Steps[None]":  # quoted, or it would be looked up for every result
            nonlocal outcome, tries
            tries += 1
            if outcome is None and tries > 2:
                outcome = protocol.completed(None, "the encoding of the result was interrupted")
            if outcome is None:
                outcome = completion(self._codec, self.policy, result)
            return self.completing(outcome, result) if commit is None else self._committing(outcome, commit)

        return recording

    def warn(self) -> None:
        """Warn of a result that was not stored; after it was recorded, for the warning may be an error."""
        if self.record.result is None:
            warn_of_missing(self.record)

    def completing(self, outcome: Outcome, result: object, *, again: bool = True) -> Steps[None]:
        """Record a completion; the handler has succeeded, so nothing that goes wrong here may look like its failure.

        A result that the store does not take, or not within one lease, is left out. After one more lease it raises
        ResultNotRecorded.
        """
        end = self._end(outcome)
        try:
            ended = yield from end
        except OncewardError as error:
            lasting = not getattr(error, "transient", False)
            if lasting and again:
                return (yield from self.completing(outcome, result, again=False))
            if outcome.result is not None and (lasting or self.clock() < self.limit(2)):
                # The completion matters more.
                return (yield from self.completing(without_result(error), result, again=False))
            raise ResultNotRecorded(self.record.key, result, str(error)) from error
        return self.ended(ended, outcome, "record its result")

    def _committing(self, outcome: Outcome, commit: steps.Commit) -> Steps[None]:
        """Record a completion together with its effect; while neither is made, an error is the handler's to deal with."""
        end = self._end(outcome, commit)
        try:
            ended = yield from end
        finally:
            self._ending = False
        self.ended(ended, outcome, "commit its effect")

    def failing(self, error: Exception) -> Steps[None]:
        """Give the key back, park it, or record the exception as the outcome. Never raises in the exception's place.

        A handler that has completed it in vain has succeeded: given back, its effect would be made again at once.
        """
        if self.completed_in_vain(error):
            self.let_go()
            return
        try:
            yield from self.leaving(self.failure(error), "record how it failed")
        except OncewardError as trouble:  # the handler's own exception goes on, with this as a note
            error.add_note(f"onceward: and then {trouble}")

    def completed_in_vain(self, error: Exception) -> bool:
        """Tell whether a handler raises ``error`` because it has completed this claim itself, and that was not recorded."""
        return isinstance(error, ResultNotRecorded) and error.key == self.record.key

    def completion(self, result: object) -> Outcome:
        """Return the outcome that records ``result``."""
        return completion(self._codec, self.policy, result)

    def failure(self, error: Exception) -> Outcome:
        """Return the outcome of a handler that raised ``error``: the exception itself, or the key given back or parked."""
        if isinstance(error, GivenBack):
            return protocol.unbegun()
        if isinstance(error, self.policy.final) and not isinstance(error, NotBegun):
            return final(error, self.policy)
        return protocol.failed(self.record, self.policy, noted(describe(error), self.policy))

    def _noted(self, text: str | None) -> str | None:
        return text and noted(storable(text), self.policy)

    def ending(self) -> None:
        """Say that its end is on its way, together with those of others."""
        self._ending = True

    def ended(self, ended: Settled | Lost, outcome: Outcome, doing: str) -> None:
        """Take in what came of ending it; raises LeaseLost."""
        if isinstance(ended, Lost):
            self._lost = True
            raise LeaseLost(self.record.key, doing)
        self.record = ended.record
        self.settled = outcome.status

    def leaving(self, outcome: Outcome, doing: str) -> Steps[None]:
        """End it without a result; raises LeaseLost, or what the store raised."""
        try:
            ended = yield from self._end(outcome)
        except OncewardError as error:
            if outcome.result is None or self.clock() >= self.limit(2):
                raise
            outcome = without_result(error)
            ended = yield from self._end(outcome)
        self.ended(ended, outcome, doing)

    def _end(self, outcome: Outcome, commit: steps.Commit | None = None) -> Steps[Settled | Lost]:
        self._check_open()
        self._ending = True
        return steps.end(
            self.store,
            self.record,
            outcome,
            self.policy,
            clock=self.clock,
            until=self._two_leases if outcome.result is None or commit is not None else self._one_lease,
            commit=commit,
        )

    def _begin_end(self) -> None:
        self._check_free()
        self._ended = None  # it ends now, perhaps once more

    def _check_free(self) -> None:
        if self.paused:
            raise OncewardError(
                f"{self.record.key}: a transaction holds this claim and will end it; set the transaction's result, or raise"
            )

    def check_own(self) -> None:
        """Raise ForkedClaim in a process that was forked from the one that made the claim."""
        if self._process != forks.generation:
            raise ForkedClaim(self.record.key)

    def _check_open(self) -> None:
        if self._process != forks.generation:
            self.check_own()
        if self.settled is not None:
            raise OncewardError(f"{self.record.key}: this claim was ended before ({self.settled})")

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
            self._lost = True
            raise LeaseLost(self.record.key, "extend its lease")
