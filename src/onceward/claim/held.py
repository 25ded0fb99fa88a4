"""A claim as its handler has it: the verbs of :class:`Claim`."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onceward.claim import called, heartbeat, lease
from onceward.claim.called import LAZY, OVER, RETURNED, Call
from onceward.claim.claim import Claim, Transaction
from onceward.claim.ends import EndingClaim
from onceward.claim.replays import CallOutcome
from onceward.core import protocol
from onceward.core.drivers import Steps, settle, settle_async
from onceward.core.protocol import Outcome
from onceward.core.record import Record
from onceward.errors import Completed, LeaseLost, OncewardError
from onceward.keys.ledger_keys import derived_key
from onceward.results.outcomes import noted, storable

if TYPE_CHECKING:
    from onceward.claim.stepping.handler_steps import HandlerSteps

T = TypeVar("T")
C = TypeVar("C")


class HeldClaim(EndingClaim):
    """A claim that this process holds. Its handler sees a :class:`Claim`."""

    # Takes what is completed, if its guard has a cache.
    remember: Callable[[Record, float | None, float], None] | None = None

    def _chained(self) -> "HandlerSteps":
        if self.chain is None:
            from onceward.claim.stepping.handler_steps import HandlerSteps

            vars(self).setdefault("chain", HandlerSteps(self))  # of several threads, one wins
        assert self.chain is not None
        return self.chain

    @property
    def follows(self) -> bool:
        """Whether an earlier attempt may have begun a step of which nothing is recorded."""
        return self._chained().follows

    def _send(self, target: str, message: object, **more: Any) -> str:
        self._check_sending()
        if self.outbox is None:
            from onceward.outbox.pending import PendingMessages, check_outbox  # as below: only who sends pays for it

            check_outbox(self.store)
            messages = PendingMessages(self.record.key, self.record.owner, self.policy)
            vars(self).setdefault("outbox", messages)  # of several threads, one wins
        assert self.outbox is not None
        return self.outbox.add(target, message, **more, check=self._check_sending, trace=self.observers.headers())

    def request_key(self, *parts: object) -> str:
        """Return the key of a request that is made here, in the handler or in a step of it.

        It is the same on each attempt, because a step that is not entered again has requests of its own.

        Raises:
            LeaseLost: the key has gone on without this worker.
            ValueError: this attempt has made such a request here before.
            ForkedClaim: this process was forked from the one that made the claim, and may be serving other calls by now.
        """
        self.check_own()
        if self.lost:
            raise LeaseLost(self.record.key, "send a request")
        step = None if self.chain is None else self.chain.within()
        key = derived_key(self.record.key, ("request", *(() if step is None else (step,)), *parts))
        requests: dict[str, object] = vars(self).setdefault("requested", {})
        mine = object()
        if requests.setdefault(key, mine) is not mine:  # of several threads, one wins
            raise ValueError(
                f"{self.record.key}: a second request to {parts[-1]} in one attempt. Its key must tell the two apart: give it one, "
                "as in headers={'Idempotency-Key': claim.key('refund', order_id)}"
            )
        return key

    def free_request_key(self, key: str) -> None:
        """Let a key of :meth:`request_key` be asked for again, because its request was not carried out."""
        vars(self)["requested"].pop(key, None)

    def _check_sending(self) -> None:
        self._check_open()
        if not self.sends:
            raise OncewardError(f"{self.record.key}: its handler has failed, so it sends nothing any more")
        if self.ending:
            raise OncewardError(f"{self.record.key}: its completion is being recorded, so no message can join it")
        if self.lost:
            raise LeaseLost(self.record.key, "send a message")
        if self.chain is not None:
            self.chain.check_outside()

    def transaction(self, connection: C) -> Transaction[C]:
        """See :class:`Claim`."""
        from onceward.claim.claim_transaction import ClaimTransaction

        return ClaimTransaction(self, connection)

    def step_transaction(self, name: object, connection: C) -> Transaction[C]:
        """See :class:`Claim`."""
        from onceward.claim.claim_transaction import StepTransaction

        return StepTransaction(self, self._chained(), name, connection)

    def _completing(self, result: object, writes: Sequence[object] | None = None) -> Callable[[], Steps[None]]:
        self.check_not_stopped()
        commit = None
        if writes is not None:
            from onceward.stores.capabilities import TRANSACT

            commit = TRANSACT.require(self.store)(writes)
        self._begin_end()
        call = Call(None, {RETURNED: result})
        return partial(self.completing, call) if commit is None else partial(self.committing, call, commit)

    def _leaving(
        self, outcome: Callable[[str | None], Outcome], text: str | None, doing: str
    ) -> Callable[[], Steps[None]]:
        self._begin_end()
        if self.settled is None and outcome is protocol.released and self.completed_in_vain:
            self.let_go()  # as after the handler's own exception
            raise OncewardError(
                f"{self.record.key}: cannot {doing}: its handler or a step succeeded, but this could not be recorded. "
                "The next attempt would repeat the effect. The key stays claimed until its lease ends"
            )
        if self.chain is not None and self.settled is None:
            self.chain.check_none_runs(doing)
        return lambda: self.leaving(outcome(text and noted(storable(text), self.policy)), doing)

    def _settle(self, make: Callable[[], Steps[None]]) -> None:
        try:
            settle(make, self.store)
        finally:
            self.tell()
        self.warn()

    async def _settle_async(self, make: Callable[[], Steps[None]]) -> None:
        try:
            await settle_async(make, self.store)
        finally:
            self.tell()
        self.warn()

    def _begin_end(self) -> None:
        self._check_free()
        self._ended = None  # an earlier try to end it does not count

    # --- after its handler ------------------------------------------------------------------------------------------------------

    def leave(self, call: Call) -> BaseException | None:
        """End the claim as ``call`` ended, unless its handler did. After an interrupt, call it again.

        Returns:
            The handler's exception, or None.

        Raises:
            LeaseLost, ResultNotRecorded, ForkedClaim: the handler returned, and that is not recorded.
        """
        failure, make = self.end_of(call)
        try:
            if make is not None:
                settle(make, self.store)
                if failure is None:
                    self.warn()
        finally:
            heartbeat.HEARTBEAT.claims.pop(self.number, None)  # as forget()
            if self.story is not None:
                self.tell()
        call[OVER] = True
        return failure

    async def leave_async(self, call: Call) -> BaseException | None:
        """Like :meth:`leave`, for a coroutine."""
        failure, make = self.end_of(call)
        try:
            if make is not None:
                await settle_async(make, self.store)
                if failure is None:
                    self.warn()
        finally:
            heartbeat.HEARTBEAT.claims.pop(self.number, None)  # as forget()
            if self.story is not None:
                self.tell()
        call[OVER] = True
        return failure

    def end_of(self, call: Call) -> tuple[BaseException | None, Callable[[], Steps[None]] | None]:
        """Return how ``call`` failed, and a maker of the steps that end the claim; None if there are none."""
        # In most calls, without a call of called.failure().
        failure = called.failure(call) if RETURNED not in call or type(call[RETURNED]) in LAZY else None
        if failure is None and self.chain is not None:
            failure = self.chain.refusal()
        if failure is None:
            if self.settled is None:
                return None, partial(self.completing if self.remember is None else self._remembering, call)
            self.check_own()
        elif not called.is_failure(failure):
            self.drop()
        elif self.settled is None and not self.inherited:
            if self.paused is not None:
                self.paused()  # an interrupt kept its transaction from ending
            self.handled()
            return failure, partial(self.failing, failure)
        return failure, None

    def _remembering(self, call: Call) -> Steps[None]:
        since: Any = call.setdefault("since", self.clock())  # of the first try
        yield from self.completing(call)
        if self.remember is not None:
            self.remember(self.record, self.policy.retention, since)

    def drop(self) -> None:
        """Leave an interrupted handler's key claimed until its lease ends: its work may still go on."""
        if self.story is not None and not self.over:
            self.story.note("interrupted", self.record)
        self.let_go()
        heartbeat.HEARTBEAT.forget(self)
        if self.paused is not None and not self.inherited:
            self.paused()  # as in end_of()
        self.tell()


def claimed(key: str, entry: HeldClaim | CallOutcome[object]) -> HeldClaim:
    """Return the claim that was won, or raise Completed with the recorded answer."""
    if isinstance(entry, CallOutcome):
        raise Completed(key, entry.value)
    entry.thread, entry.left = get_ident(), True  # until a block or a transaction is entered
    return entry


def current() -> Claim:
    """Return the claim of the handler that is running here.

    Raises:
        OncewardError: no guarded handler is running in this context.
        ForkedClaim: this process was forked from the one in which it runs.
    """
    claim = held()
    claim.check_own()
    return claim


def held() -> HeldClaim:
    """Like :func:`current`, for adapters: the claim with its inner methods."""
    claim = innermost()
    if claim is None:
        raise OncewardError("there is no claim here: call onceward.current() inside a guarded handler")
    return claim


def innermost() -> HeldClaim | None:
    """Return the claim of the handler that is running here; None if there is none."""
    return cast("HeldClaim | None", lease.innermost())
