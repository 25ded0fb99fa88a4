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
from onceward.claim import called, heartbeat
from onceward.claim.called import OVER, RAISED, RETURNED, Call, ClaimParameter
from onceward.claim.held import HeldClaim, claimed
from onceward.claim.replays import CallOutcome, Replays, refusal
from onceward.claim.running import CURRENT, check_free, run_under, run_under_async
from onceward.core import steps
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async, settle, settle_async
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.steps import Bid, Refused, Replay, Won
from onceward.errors import LeaseLost, OncewardError
from onceward.observe.observers import UNOBSERVED, Observers
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.observe.events import Event
    from onceward.results.codec import Codec

Function = Callable[..., object]


class Guard:
    """The options of one handler, and its way of storing results: by default, each by its own type.

    Args:
        policy: the options, checked; a ``max_result`` of None becomes the store's.
        parameter: the handler's parameter that takes the claim, if it has one.
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
        *,
        name: str,
    ) -> None:
        if policy.lease < 3 * store.resolution:
            raise ValueError(
                f"lease={policy.lease!r} is too short for {store.url}, whose clock counts in steps of {store.resolution:g} s: "
                f"give at least {3 * store.resolution:g}"
            )
        if policy.beat_every >= policy.lease - steps.margin(store, policy):
            raise ValueError(
                f"heartbeat={policy.heartbeat!r} does not fit lease={policy.lease!r} on {store.url}: a claim there is given up "
                f"{steps.margin(store, policy):g} s before its lease ends, so renew it earlier (default: a third of the lease)"
            )
        self.store = store
        self.name = name
        self.policy = policy if policy.max_result is not None else policy._replace(max_result=store.max_result)
        self.clock = clock
        self.replays = Replays(self.policy, clock, codec)
        self.codec = self.replays.codec
        self.observers = observers
        self._parameter = parameter
        self._caches = bool(policy.cache)

    def under(self, policy: Policy, codec: "Codec") -> "Guard":
        """Return this guard under another policy and codec, for functions that take no claim."""
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
    ) -> object:
        """Run ``function`` once for ``key``, or return or raise what was recorded.

        With ``whole`` it returns a :class:`CallOutcome`.
        """
        entry = self._recalled(key, fingerprint) if self._caches else None
        claim = entry or self.enter(key, fingerprint)
        match claim:  # not type(claim): an interrupt can come after any call, and the claim would not end
            case CallOutcome():
                return claim if whole else claim.value
        call: Call | None = None
        try:
            if self._parameter is not None:
                args, kwargs = self._parameter.fill(claim, args, kwargs)
            call = Call(partial(function, *args, **kwargs))
            failure = run_under(claim, call, self.leave)
            if failure is not None:
                raise failure
            return call[RETURNED] if not whole else CallOutcome(call[RETURNED], claim.record, replayed=False)
        except BaseException as error:
            if not call:  # the handler has not begun
                self.leave(claim, Call(None, {RAISED: error}))
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
    ) -> object:
        """Like :meth:`call`; awaits what ``function`` returns, if it can be awaited."""
        entry = self._recalled(key, fingerprint) if self._caches else None
        claim = entry or await self.enter_async(key, fingerprint)
        match claim:  # as above
            case CallOutcome():
                return claim if whole else claim.value
        call: Call | None = None
        try:
            if self._parameter is not None:
                args, kwargs = self._parameter.fill(claim, args, kwargs)
            call = Call(partial(function, *args, **kwargs))
            failure = await run_under_async(claim, call, self.leave_async)
            if failure is not None:
                raise failure
            return call[RETURNED] if not whole else CallOutcome(call[RETURNED], claim.record, replayed=False)
        except BaseException as error:
            if not call:  # as above
                await self.leave_async(claim, Call(None, {RAISED: error}))
            raise
        finally:
            call = None  # as above

    def _recalled(self, key: str, fingerprint: str | None) -> CallOutcome[object] | None:
        known = self.replays.recall(key, fingerprint)
        if known is not None and self.observers.given:
            self.observers.tell(observe.of_memory(key))
        return known

    # --- claim and end, sync and async ----------------------------------------------------------------------------

    def enter(self, key: str, fingerprint: str | None, *, value: bool = True) -> HeldClaim | CallOutcome[object]:
        """Claim ``key`` and start to renew it, or return the recorded answer.

        Raises:
            Busy, LeaseLost, Mismatch, Parked, Reentrant, ResultUnavailable, StoreError, UnknownNeed, UnknownStatus: as their
                docs say; the handler must not run.
        """
        bid = self.bid(key, fingerprint)
        told = self.observers.are_listening()
        since = self.clock() if told or self._caches else 0.0
        try:
            outcome = drive(steps.claim(self.store, bid, value=value), self.store)
            if isinstance(outcome, Won):
                return self._won(outcome, since, told=told)
        except OncewardError:
            raise
        except BaseException:
            with suppress(Exception):  # the caller must see the interrupt; the lease ends by itself
                settle(partial(steps.abandon, self.store, bid), self.store)
            raise
        return self.answer(outcome, since, told=told)

    async def enter_async(
        self, key: str, fingerprint: str | None, *, value: bool = True
    ) -> HeldClaim | CallOutcome[object]:
        """Like :meth:`enter`, for a coroutine."""
        bid = self.bid(key, fingerprint)
        told = self.observers.are_listening()
        since = self.clock() if told or self._caches else 0.0
        try:
            outcome = await drive_async(steps.claim(self.store, bid, value=value), self.store)
            if isinstance(outcome, Won):
                return self._won(outcome, since, told=told)
        except (OncewardError, GeneratorExit):  # a closed coroutine must not await
            raise
        except BaseException:
            with suppress(Exception):  # as above
                await settle_async(partial(steps.abandon, self.store, bid), self.store)
            raise
        return self.answer(outcome, since, told=told)

    def acquire(self, key: str) -> HeldClaim:
        """Return the claim of ``key``, or raise Completed with the recorded answer."""
        return claimed(key, self.enter(key, None))

    async def acquire_async(self, key: str) -> HeldClaim:
        """As ``acquire``, for a coroutine."""
        return claimed(key, await self.enter_async(key, None))

    def leave(self, claim: HeldClaim, call: Call) -> BaseException | None:
        """End ``claim`` as ``call`` ended, unless its handler did. After an interrupt, call it again.

        Returns:
            The handler's exception, or None. It is an interrupt if it is no ``Exception``.

        Raises:
            LeaseLost, ResultNotRecorded, ForkedClaim: the handler returned, and that is not recorded.
        """
        failure = called.failure(call)
        if failure is None and claim.chain is not None:
            failure = claim.chain.refusal()
        try:
            if (steps_of_end := self.ending(claim, call.get(RETURNED), failure)) is not None:
                since = self.clock() if self._caches else 0.0
                settle(steps_of_end, self.store)
                if failure is None:
                    self._completed(claim, since)
        finally:
            heartbeat.HEARTBEAT.forget(claim)
            if claim.story is not None:
                claim.story.tell()
        call[OVER] = True
        return failure

    async def leave_async(self, claim: HeldClaim, call: Call) -> BaseException | None:
        """Like :meth:`leave`, for a coroutine."""
        failure = called.failure(call)
        if failure is None and claim.chain is not None:
            failure = claim.chain.refusal()
        try:
            if (steps_of_end := self.ending(claim, call.get(RETURNED), failure)) is not None:
                since = self.clock() if self._caches else 0.0
                await settle_async(steps_of_end, self.store)
                if failure is None:
                    self._completed(claim, since)
        finally:
            heartbeat.HEARTBEAT.forget(claim)
            if claim.story is not None:
                claim.story.tell()
        call[OVER] = True
        return failure

    def ending(
        self, claim: HeldClaim, result: object, failure: BaseException | None
    ) -> Callable[[], Steps[None]] | None:
        """Return a maker of the steps that end ``claim`` with a result or a failure; None if there are none."""
        if failure is None:
            if claim.settled is None:
                return claim.success(result)
            claim.check_own()
        elif not isinstance(failure, Exception):
            self.drop(claim)
        elif claim.settled is None and not claim.inherited:
            if claim.paused is not None:
                claim.paused()  # an interrupt kept its transaction from ending
            claim.handled()
            return partial(claim.failing, failure)
        return None

    def _completed(self, claim: HeldClaim, since: float) -> None:
        if self._caches:
            self.replays.remember(claim.record, self.policy.retention, since)
        claim.warn()

    def drop(self, claim: HeldClaim) -> None:
        """Leave an interrupted handler's key claimed until its lease ends: its work may still go on."""
        if claim.story is not None and not claim.over:
            claim.story.note("interrupted", claim.record)
        claim.let_go()
        heartbeat.HEARTBEAT.forget(claim)
        if claim.paused is not None and not claim.inherited:
            claim.paused()  # as in ending()
        claim.tell()

    def bid(self, key: str, fingerprint: str | None, policy: Policy | None = None, owner: str = "") -> Bid:
        """Return a bid for ``key``, by default as a new owner; raises Reentrant when the caller is handling this key."""
        if CURRENT.get() is not None:
            check_free(self.store, key)
        if self.codec.resolve is not None:
            self.codec.resolve()
        bid = (key, owner or os.urandom(16).hex(), fingerprint, policy or self.policy, self.clock)
        return tuple.__new__(Bid, bid)  # what Bid(...) does, in half the time

    def answer(self, outcome: Replay | Refused, since: float, *, told: bool) -> CallOutcome[object]:
        """Return what a duplicate gets, or raise why it gets nothing, and tell observers."""
        if told or (isinstance(outcome, Refused) and outcome.verdict is Verdict.PARKED):
            self.observers.tell(*self.events_of(outcome, since))
        return self.replays.answer(outcome, since)

    def events_of(self, outcome: Won | Replay | Refused, since: float) -> "list[Event]":
        """Return the events of a claim that was asked for at ``since``; 0 means that nobody listened."""
        error = refusal(outcome, self.policy) if isinstance(outcome, Refused) else None
        event = observe.of_claiming(outcome, self.clock() - since if since else None, error)
        return [] if event is None else [event]

    def _won(self, outcome: Won, since: float, *, told: bool) -> HeldClaim:
        if told:
            self.observers.tell(*self.events_of(outcome, since))
        if self.clock() >= outcome.until:  # this worker was stopped or cut off after it asked
            self.observers.tell(observe.about("lost", outcome.record))
            raise LeaseLost(outcome.record.key, "begin its handler")
        claim = HeldClaim(self.store, outcome, self.policy, self.clock, self.codec, self.observers, told=told)
        heartbeat.HEARTBEAT.watch(claim)
        return claim

    def held(self, won: Won, policy: Policy, *, told: bool) -> HeldClaim:
        """Return the claim won under ``policy``, whose lease can differ; ``told`` is whether observers listen."""
        return HeldClaim(self.store, won, policy, self.clock, self.codec, self.observers, told=told)
