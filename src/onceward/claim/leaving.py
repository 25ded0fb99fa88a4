"""How a guard ends a claim after its handler: as it returned or raised, or not at all after an interrupt."""

from collections.abc import Callable
from functools import partial

from onceward.claim import called, heartbeat
from onceward.claim.called import OVER, RETURNED, Call
from onceward.claim.held import HeldClaim
from onceward.claim.replays import Replays
from onceward.core.clock import Clock
from onceward.core.drivers import Steps, settle, settle_async
from onceward.core.policy import Policy
from onceward.stores.contract import Store


class Leaving:
    """The part of a guard that ends claims."""

    store: Store
    policy: Policy
    clock: Clock
    replays: Replays
    _caches: bool

    def leave(self, claim: HeldClaim, call: Call) -> BaseException | None:
        """End ``claim`` as ``call`` ended, unless its handler did. After an interrupt, call it again.

        Returns:
            The handler's exception, or None.

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
                    if self._caches:
                        self.replays.remember(claim.record, self.policy.retention, since)
                    claim.warn()
        finally:
            heartbeat.HEARTBEAT.forget(claim)
            if claim.story is not None:
                claim.tell()
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
                    if self._caches:
                        self.replays.remember(claim.record, self.policy.retention, since)
                    claim.warn()
        finally:
            heartbeat.HEARTBEAT.forget(claim)
            if claim.story is not None:
                claim.tell()
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
        elif not called.is_failure(failure):
            self.drop(claim)
        elif claim.settled is None and not claim.inherited:
            if claim.paused is not None:
                claim.paused()  # an interrupt kept its transaction from ending
            claim.handled()
            return partial(claim.failing, failure)
        return None

    def drop(self, claim: HeldClaim) -> None:
        """Leave an interrupted handler's key claimed until its lease ends: its work may still go on."""
        if claim.story is not None and not claim.over:
            claim.story.note("interrupted", claim.record)
        claim.let_go()
        heartbeat.HEARTBEAT.forget(claim)
        if claim.paused is not None and not claim.inherited:
            claim.paused()  # as in ending()
        claim.tell()
