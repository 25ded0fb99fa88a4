"""Guards: claim the key, run the handler, record the end; for functions, coroutines and ``with`` blocks.

The ledger steps are generators (``core/steps.py``, ``held.py``). Each function here has two forms, and drives them. An
interrupt while claiming gives the key back. In the handler it leaves the key claimed until the lease is over; an ``Exception``
counts as a failure instead. While the outcome is being recorded, the interrupt waits for that.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from onceward import observe
from onceward.claim import heartbeat
from onceward.claim.called import RAISED, RETURNED, Call, ClaimParameter, check_free, run_under, run_under_async
from onceward.claim.held import HeldClaim
from onceward.claim.lease import CURRENT
from onceward.claim.replays import CallOutcome, Replays, refusal
from onceward.core import steps
from onceward.core.belief import margin
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async, settle, settle_async
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.record import Record
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.core.writes import UNKNOWN, Provenance
from onceward.errors import LeaseLost, Mismatch, OncewardError
from onceward.observe.observers import UNOBSERVED, Observers
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.claim.inputs import InputCodec
    from onceward.observe.events import Event
    from onceward.observe.spans import CallSpan, Comes
    from onceward.results.codec import Codec

Function = Callable[..., object]
Claiming = Callable[..., Steps[Won | Replay | Refused]]  # as steps.claim
Abandon = Callable[[Store, Bid], Steps[None]]  # as steps.abandon


class Guard:
    """The options of one handler, and its way of storing results: by default, each by its own type.

    Args:
        policy: the options, checked; a ``max_result`` of None becomes the store's.
        parameter: the handler's parameter that takes the claim, if it has one.
        inputs: how the arguments of calls are kept; None keeps none.
        name: the namespace of its keys.

    Raises:
        ValueError: the lease is too short for the store's clock, or the heartbeat is too late for the lease.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        clock: Clock,
        codec: "Codec | None" = None,
        parameter: ClaimParameter | None = None,
        observers: Observers = UNOBSERVED,
        inputs: "InputCodec | None" = None,
        *,
        name: str,
    ) -> None:
        if policy.lease < 3 * store.resolution:
            raise ValueError(
                f"lease={policy.lease!r} is too short for {store.url}, whose clock counts in steps of {store.resolution:g} s: "
                f"give at least {3 * store.resolution:g}"
            )
        early = margin(policy.lease, store.resolution)
        if (policy.heartbeat or policy.lease / 3) >= policy.lease - early:
            raise ValueError(
                f"heartbeat={policy.heartbeat!r} does not fit lease={policy.lease!r} on {store.url}: a claim there is given up "
                f"{early:g} s before its lease ends, so renew it earlier (default: a third of the lease)"
            )
        self.store = store
        self.name = name
        self.policy = policy if policy.max_result is not None else policy._replace(max_result=store.max_result)
        self.clock = clock
        self.replays = Replays(self.policy, clock, codec)
        self.codec = self.replays.codec
        self.observers = observers
        self.inputs = inputs
        self._parameter = parameter
        self._claiming: Claiming = steps.claim
        self._abandon: Abandon = steps.abandon
        self._caches = bool(policy.cache)
        self.lasting: Guard | None = None  # within durable functions

    def under(self, policy: Policy, codec: "Codec") -> "Guard":
        """Return this guard under another policy, for functions that take no claim."""
        return Guard(self.store, policy, self.clock, codec, None, self.observers, name=self.name)

    def call(
        self,
        key: str,
        fingerprint: str | None,
        function: Function,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        whole: bool = False,
        comes: "Comes | None" = None,
        provenance: Provenance = UNKNOWN,
        owner: str = "",
    ) -> object:
        """Run ``function`` once for ``key``, or return or raise what was recorded.

        With ``whole`` it returns a :class:`CallOutcome`. ``comes`` tells what the call came with, ``provenance`` from where. A call with
        an ``owner`` goes on with the claim that this owner has.
        """
        entry = self._recalled(key, fingerprint, comes) if self._caches else None
        if self.inputs is not None:
            provenance = provenance._replace(input=self.inputs.encode(args, kwargs))
        claim = entry or self.enter(key, fingerprint, provenance, comes, owner)
        match claim:  # not type(claim): an interrupt can come after any call, and the claim would not end
            case CallOutcome():
                return claim if whole else claim.value
        call: Call | None = None
        try:
            if self._parameter is not None:
                args, kwargs = self._parameter.fill(claim, args, kwargs)
            call = Call(partial(function, *args, **kwargs))
            failure = run_under(claim, call, HeldClaim.leave)
            if failure is not None:
                raise failure
            return call[RETURNED] if not whole else CallOutcome(call[RETURNED], claim.record, replayed=False)
        except BaseException as error:
            if not call:  # the handler has not begun
                claim.leave(Call(None, {RAISED: error}))
            raise
        finally:
            call = None  # else the exception, its traceback and this frame would keep each other alive

    async def call_async(
        self,
        key: str,
        fingerprint: str | None,
        function: Function,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        whole: bool = False,
        comes: "Comes | None" = None,
        provenance: Provenance = UNKNOWN,
    ) -> object:
        """Like :meth:`call`; awaits what ``function`` returns, if it can be awaited."""
        entry = self._recalled(key, fingerprint, comes) if self._caches else None
        if self.inputs is not None:
            provenance = provenance._replace(input=self.inputs.encode(args, kwargs))
        claim = entry or await self.enter_async(key, fingerprint, provenance, comes)
        match claim:  # as above
            case CallOutcome():
                return claim if whole else claim.value
        call: Call | None = None
        try:
            if self._parameter is not None:
                args, kwargs = self._parameter.fill(claim, args, kwargs)
            call = Call(partial(function, *args, **kwargs))
            failure = await run_under_async(claim, call, HeldClaim.leave_async)
            if failure is not None:
                raise failure
            return call[RETURNED] if not whole else CallOutcome(call[RETURNED], claim.record, replayed=False)
        except BaseException as error:
            if not call:  # as above
                await claim.leave_async(Call(None, {RAISED: error}))
            raise
        finally:
            call = None  # as above

    def claiming_by(self, claiming: Claiming, abandon: Abandon, policy: Policy | None = None) -> "Guard":
        """Return this guard with other steps for its claims. It keeps no arguments, and remembers no result."""
        policy = (policy or self.policy)._replace(cache=0, keep_input=False)
        guard = Guard(self.store, policy, self.clock, self.codec, self._parameter, self.observers, name=self.name)
        guard._claiming, guard._abandon = claiming, abandon
        return guard

    def _recalled(self, key: str, fingerprint: str | None, comes: "Comes | None") -> CallOutcome[object] | None:
        if not self.observers.given:
            return self.replays.recall(key, fingerprint)
        record = self.replays.remembered(key)
        if record is None:
            return None
        mismatch: Mismatch | None = None
        try:
            return self.replays.recall(key, fingerprint)
        except Mismatch as error:  # other exceptions are the recorded ones
            mismatch = error
            raise
        finally:
            event = observe.of_memory(record.key, record.trace, mismatch)
            if (span := self.observers.begin(self.name, record.key, comes)) is not None:
                span.note(event)
                span.end()
            self.observers.tell(event)

    # --- the claim, sync and async ----------------------------------------------------------------------------------

    def enter(
        self,
        key: str,
        fingerprint: str | None,
        provenance: Provenance = UNKNOWN,
        comes: "Comes | None" = None,
        owner: str = "",
    ) -> HeldClaim | CallOutcome[object]:
        """Claim ``key`` and start to renew it, or return the recorded answer.

        Raises:
            Busy, LeaseLost, Mismatch, Parked, Reentrant, ResultUnavailable, StoreError, UnknownNeed, UnknownStatus: as their
                docs say; the handler must not run.
        """
        bid, listening, since, span = self.asked(key, fingerprint, provenance, comes, owner)
        try:
            outcome = drive(self._claiming(self.store, bid), self.store)
            if isinstance(outcome, Won):
                claim = self._won(outcome, since, listening, span)
                claim.goes_on = bool(owner) and outcome.goes_on
                return claim
        except BaseException as error:
            if span is not None:
                span.end(error)
            if not isinstance(error, OncewardError):
                with suppress(Exception):  # the caller must see the interrupt; the lease ends by itself
                    settle(partial(self._abandon, self.store, bid), self.store)
            raise
        return self.answer(outcome, since, listening=listening, span=span)

    async def enter_async(
        self,
        key: str,
        fingerprint: str | None,
        provenance: Provenance = UNKNOWN,
        comes: "Comes | None" = None,
    ) -> HeldClaim | CallOutcome[object]:
        """Like :meth:`enter`, for a coroutine."""
        bid, listening, since, span = self.asked(key, fingerprint, provenance, comes)
        try:
            outcome = await drive_async(self._claiming(self.store, bid), self.store)
            if isinstance(outcome, Won):
                return self._won(outcome, since, listening, span)
        except BaseException as error:
            if span is not None:
                span.end(error)
            if not isinstance(error, OncewardError | GeneratorExit):  # a closed coroutine must not await
                with suppress(Exception):  # as above
                    await settle_async(partial(self._abandon, self.store, bid), self.store)
            raise
        return self.answer(outcome, since, listening=listening, span=span)

    def asked(
        self,
        key: str,
        fingerprint: str | None,
        provenance: Provenance = UNKNOWN,
        comes: "Comes | None" = None,
        owner: str = "",
        policy: Policy | None = None,
    ) -> "tuple[Bid, bool, float, CallSpan | None]":
        """Return a bid for ``key``, whether observers listen, when that began, and its span, if anybody makes spans.

        By default the bid is of a new owner. Raises Reentrant when the caller is handling this key.
        """
        if CURRENT.get() is not None:
            check_free(self.store, key)
        fields = (key, owner or os.urandom(16).hex(), fingerprint, policy or self.policy, self.clock, provenance)
        bid = tuple.__new__(Bid, fields)  # what Bid(...) does, in half the time
        listening = self.observers.are_listening()
        since = self.clock() if listening or self._caches else 0.0
        span = self.observers.begin(self.name, key, comes) if listening else None
        return (bid if span is None else span.on(bid)), listening, since, span

    def answer(
        self, outcome: Replay | Refused, since: float, *, listening: bool, span: "CallSpan | None" = None
    ) -> CallOutcome[object]:
        """Return what a duplicate gets, or raise why it gets nothing, and tell observers."""
        if isinstance(outcome, Replay) and outcome.is_due:
            self.send_due(outcome.record)
        if listening or (isinstance(outcome, Refused) and outcome.verdict is Verdict.PARKED):
            self.observers.tell(*self.events_of(outcome, since, span))
        if span is not None:
            span.end()
        if isinstance(outcome, Replay):
            if self._caches:
                self.replays.remember(outcome.record, outcome.remaining, since)
            return CallOutcome(self.replays.recorded(outcome.record), outcome.record, replayed=True)
        if outcome.verdict is Verdict.BUSY and self.policy.on_busy == "skip":
            return CallOutcome(None, outcome.record, replayed=False)
        raise refusal(outcome, self.policy)

    def send_due(self, record: Record) -> None:
        """Let this process send the messages of a completed record, which its own worker has not sent in time."""
        from onceward.outbox.sender import send_soon  # a duplicate is rarely asked for this

        send_soon(self.store, record, self.policy.seal, self.observers)

    def events_of(self, outcome: Won | Replay | Refused, since: float, span: "CallSpan | None" = None) -> "list[Event]":
        """Return the events of a claim that was asked for at ``since``; 0 means that nobody listened. ``span`` gets them."""
        error = refusal(outcome, self.policy) if isinstance(outcome, Refused) else None
        event = observe.of_claiming(outcome, self.clock() - since if since else None, error)
        if event is None:
            return []
        if span is not None:
            span.note(event)
        return [event]

    def _won(self, outcome: Won, since: float, listening: bool, span: "CallSpan | None") -> HeldClaim:
        if listening:
            self.observers.tell(*self.events_of(outcome, since, span))
        if self.clock() >= outcome.until:  # this worker was stopped or cut off after it asked
            self.observers.tell(observe.about("lost", outcome.record))
            raise LeaseLost(outcome.record.key, "begin its handler")
        asked_at = since if listening else None
        claim = HeldClaim(self.store, outcome, self.policy, self.clock, self.codec, self.observers, asked_at, span)
        if self._caches:
            claim.remember = self.replays.remember
        try:
            heartbeat.HEARTBEAT.watch(claim)
        except BaseException:  # an interrupt; the key is given back
            heartbeat.HEARTBEAT.forget(claim)
            raise
        return claim

    def held(
        self, won: Won, policy: Policy, since: float, *, listening: bool, span: "CallSpan | None" = None
    ) -> HeldClaim:
        """Return the claim won under ``policy``, whose lease can differ; ``listening`` is whether observers listen."""
        asked_at = since if listening else None
        return HeldClaim(self.store, won, policy, self.clock, self.codec, self.observers, asked_at, span)
