"""A claim as its handler has it: the verbs of :class:`Claim`."""

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onceward.claim import lease
from onceward.claim.claim import Claim, Transaction
from onceward.claim.ends import EndingClaim
from onceward.claim.replays import CallOutcome
from onceward.core import protocol
from onceward.core.drivers import Steps, settle, settle_async
from onceward.core.protocol import Outcome
from onceward.errors import Completed, LeaseLost, OncewardError
from onceward.keys.ledger_keys import derived_key
from onceward.results.outcomes import noted, storable

if TYPE_CHECKING:
    from onceward.claim.stepping.handler_steps import HandlerSteps

T = TypeVar("T")
C = TypeVar("C")


class HeldClaim(EndingClaim):
    """A claim that this process holds. Its handler sees a :class:`Claim`."""

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
        from onceward.claim.step_transaction import StepTransaction

        return StepTransaction(self, self._chained(), name, connection)

    def _completing(self, result: object, writes: Sequence[object] | None = None) -> Callable[[], Steps[None]]:
        self.check_not_stopped()
        commit = None
        if writes is not None:
            from onceward.stores.capabilities import TRANSACT

            commit = TRANSACT.require(self.store)(writes)
        self._begin_end()
        return self.success(result, commit)

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
