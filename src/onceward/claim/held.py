"""How a claim ends: the handler's verbs, and their steps, which guards drive themselves."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

from onceward.claim.called import NotBegun
from onceward.claim.lease import Lease
from onceward.claim.open_transactions import warn_of_open
from onceward.claim.replays import CallOutcome
from onceward.core import protocol, steps, worker
from onceward.core.drivers import Steps, settle, settle_async
from onceward.core.protocol import Outcome
from onceward.core.record import COMPLETED, RELEASED, Record
from onceward.core.steps import Lost, Settled
from onceward.errors import Completed, LeaseLost, OncewardError, ResultNotRecorded
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

if TYPE_CHECKING:
    from onceward.claim.stepping.handler_steps import HandlerSteps
    from onceward.claim.stepping.transacted import StepTransaction
    from onceward.claim.transaction import Transaction
    from onceward.outbox.pending import PendingMessages

C = TypeVar("C")


class HeldClaim(Lease):
    """A claim that this process holds. Its handler sees a :class:`Claim`."""

    chain: "HandlerSteps | None" = None  # its steps, if its handler has any
    outbox: "PendingMessages | None" = None  # its messages, likewise
    thread: int | None = None  # where it was acquired; None if its handler has it in its context
    sends = True  # whether what it sends leaves with its completion
    is_alone = True  # whether nobody else can end it as its owner
    in_vain: ResultNotRecorded | None = None  # its handler has succeeded, and that could not be recorded

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

    def send(
        self,
        target: str,
        message: object,
        *,
        key: object = None,
        delay: float | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """See :class:`Claim`."""
        self._check_sending()
        if self.outbox is None:
            from onceward.outbox.pending import PendingMessages, check_outbox  # as below: only who sends pays for it

            check_outbox(self.store)
            made = PendingMessages(self.record.key, self.record.owner, self.policy)
            vars(self).setdefault("outbox", made)  # of several threads, one wins
        assert self.outbox is not None
        trace = self.observers.headers()
        return self.outbox.add(target, message, key, delay, group, headers, self._check_sending, trace)

    def request_key(self, *parts: object) -> str:
        """Return the key of a request that is made here, in the handler or in a step of it.

        It is the same on each attempt, because a step that is not entered again has requests of its own.

        Raises:
            LeaseLost: the key has gone on without this worker.
            ValueError: this attempt has made such a request here before.
        """
        if self.lost:
            raise LeaseLost(self.record.key, "send a request")
        step = None if self.chain is None else self.chain.within()
        key = derived_key(self.record.key, ("request", *(() if step is None else (step,)), *parts))
        made: dict[str, object] = vars(self).setdefault("requested", {})
        mine = object()
        if made.setdefault(key, mine) is not mine:  # of several threads, one wins
            raise ValueError(
                f"{self.record.key}: a second request to {parts[-1]} in one attempt. Its key must tell the two apart: give it one, "
                "as in headers={'Idempotency-Key': claim.key('refund', order_id)}"
            )
        return key

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

    def carrying(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the messages that leave with it. The claim must be ``ending``."""
        if self.outbox is None or outcome.status != COMPLETED:
            return outcome
        return outcome._replace(unsent=self.outbox.text())

    def hand_over(self) -> None:
        """Let this process send the messages that a completion carried. Call it when that is committed."""
        if self.outbox is None or self.outbox.since is None or self.record.unsent is None:
            return
        if self.record.unsent != self.outbox.text():
            return  # its reply came late, and somebody else has the send lease by now
        from onceward.outbox.sender import send_soon
        from onceward.outbox.sending import believed

        until = believed(self.store, self.policy, self.outbox.since)
        send_soon(self.store, self.record, self.policy.seal, self.observers, until)

    def reopened(self, record: Record, messages: int = 0) -> None:
        """Undo an end that was rolled back: ``record`` is current again, and so are the first ``messages``."""
        super().reopened(record)
        self.in_vain, self.sends = None, True
        if self.outbox is not None:
            self.outbox.cut(messages)

    def transaction(self, connection: C) -> "Transaction[C]":
        """See :class:`Claim`."""
        from onceward.claim.transaction import Transaction

        return Transaction.of_claim(self, connection)

    def step_transaction(self, name: object, connection: C) -> "StepTransaction[C]":
        """See :class:`Claim`."""
        from onceward.claim.stepping.transacted import StepTransaction

        return StepTransaction.of_step(self, self._chained(), name, connection)

    def check_not_stopped(self) -> None:
        """Raise Parked or StoreError if a step has stopped this attempt: then nothing completes it."""
        if self.chain is not None and (refusal := self.chain.refusal()) is not None:
            raise refusal

    def _completing(self, result: object, writes: Sequence[object] | None = None) -> Callable[[], Steps[None]]:
        self.check_not_stopped()
        commit = None
        if writes is not None:
            from onceward.stores.capabilities import TRANSACT

            commit = TRANSACT.needed(self.store)(writes)
        self._begin_end()
        return self.success(result, commit)

    def _leaving(
        self, outcome: Callable[[str | None], Outcome], text: str | None, doing: str
    ) -> Callable[[], Steps[None]]:
        self._begin_end()
        if self.settled is None and outcome is protocol.released and self.completed_in_vain:
            self.let_go()  # as after the handler's own exception
            raise OncewardError(
                f"{self.record.key}: cannot {doing}: its handler or a step has succeeded, which could not be recorded, so the next "
                "attempt would repeat the effect. The key stays claimed to the end of its lease"
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

    # --- by the guard -----------------------------------------------------------------------------------------------

    def success(self, result: object, commit: steps.Commit | None = None) -> Callable[[], Steps[None]]:
        """Return a maker of steps that record ``result``. After two interrupted encodings, complete without a result."""
        outcome: Outcome | None = None
        tries = 0
        self._ended = None  # as in _begin_end()
        if self.story is not None:
            self.story.handled(self.clock())

        def recording() -> "Steps[None]":  # quoted, else it is evaluated for every result
            nonlocal outcome, tries
            tries += 1
            if outcome is None and tries > 2:
                outcome = protocol.completed(None, "the encoding of the result was interrupted")
            if outcome is None:
                outcome = completion(self.codec, self.policy, result)
            return self.completing(outcome, result) if commit is None else self._committing(outcome, commit)

        return recording

    def warn(self) -> None:
        """Warn of a completion without its result, or inside a transaction of the caller's.

        Call it after the recording: a filter can make the warning an error.
        """
        if self.record.result is None and self.settled == COMPLETED:
            warn_of_missing(self.record)
        if self.settled == COMPLETED and not self.paused:
            warn_of_open(self.store, self.record.key)

    def completing(self, outcome: Outcome, result: object, *, again: bool = True) -> Steps[None]:
        """Record a completion; raises LeaseLost or ResultNotRecorded, never what looks like the handler's failure.

        If the store does not take the result within one lease, but heartbeats, it is left out. It has one more lease for the rest.
        """
        end = self._end(outcome)  # not within the try: an ended claim is no failed exchange
        try:
            ended = yield from end
        except OncewardError as error:
            lasting = not getattr(error, "transient", False)
            if lasting and again:
                return (yield from self.completing(outcome, result, again=False))
            if outcome.result is not None and (lasting or self.clock() < self.limit(2, succeeded=True)):
                # The completion matters more than the result.
                return (yield from self.completing(without_result(error), result, again=False))
            self.telling.note("not_recorded", self.record, error=error)
            self.in_vain = ResultNotRecorded(self.record.key, result, str(error))
            raise self.in_vain from error
        return self.ended(ended, outcome, "record its result")

    def _committing(self, outcome: Outcome, commit: steps.Commit) -> Steps[None]:
        """Record a completion together with its effect. While neither is made, the handler gets the error."""
        end = self._end(outcome, commit)
        try:
            ended = yield from end
        finally:
            self.ending = False
        self.ended(ended, outcome, "commit its effect")

    def failing(self, error: Exception) -> Steps[None]:
        """Give the key back, park it, or record the exception as the outcome. Never raises in the exception's place.

        If the handler completed the claim in vain, it succeeded: giving the key back would repeat its effect at once.
        """
        if self.completed_in_vain:
            self.let_go()
            return
        try:
            if self.chain is not None and not (yield from self.chain.ended()):
                self.let_go()  # what still runs must not be repeated yet
                return
            outcome = self.failure(error)
            if self.must_lapse(outcome):
                self.telling.note("interrupted", self.record)
                self.let_go()
                return
            yield from self.leaving(outcome, "record how it failed")
        except OncewardError as trouble:  # the handler's own exception goes on, with a note
            error.add_note(f"onceward: and then {trouble}")
        finally:
            self.telling.raised = None  # else the exception, its traceback and the claim would keep each other alive

    @property
    def completed_in_vain(self) -> bool:
        """Whether the handler, or a step of it, has succeeded, but that was not recorded.

        What it raises does not tell: task groups and frameworks replace the exception.
        """
        return self.in_vain is not None or (self.chain is not None and self.chain.notes.failed is not None)

    def completion(self, result: object) -> Outcome:
        """Return the outcome that records ``result``; raises as :meth:`check_not_stopped`."""
        self.check_not_stopped()
        return completion(self.codec, self.policy, result)

    def send_nothing(self) -> None:
        """Forget the messages of a handler that has failed, also if its exception is recorded as its outcome.

        What its tasks and threads send after that is refused.
        """
        self.sends = False
        if self.outbox is not None:
            self.outbox.cut()

    def failure(self, error: Exception) -> Outcome:
        """Return the outcome of a handler that raised ``error``: the exception, or the key given back or parked."""
        has_steps = self.chain is not None and bool(self.chain.used or self.chain.parks)
        if isinstance(error, GivenBack) and not has_steps:
            return protocol.unbegun()
        self.send_nothing()
        self.telling.raised = error
        if self.chain is not None and self.chain.parks is not None:
            return protocol.parked(noted(storable(self.chain.parks), self.policy))
        if isinstance(error, GivenBack):  # it has begun: the next attempt must know, and have the same input
            return protocol.released(noted(describe(error), self.policy))
        stopped = (
            self.chain is not None and self.chain.refusal() is not None
        )  # the handler does not know what it has made
        if isinstance(error, self.policy.final) and not isinstance(error, NotBegun) and not stopped:
            return final(error, self.policy)
        return protocol.failed(self.record, self.policy, noted(describe(error), self.policy))

    def must_lapse(self, outcome: Outcome) -> bool:
        """Return whether the key must not be given back: a step was cut short, and its work may still go on."""
        return outcome.status == RELEASED and self.chain is not None and self.chain.is_cut_short

    def leaving(self, outcome: Outcome, doing: str) -> Steps[None]:
        """End it without a result; raises LeaseLost, or what the store raised."""
        story, end = self.telling, self._end(outcome)
        try:
            ended = yield from end
        except OncewardError as error:
            if outcome.result is None or self.clock() >= self.limit(2):
                story.note("not_recorded", self.record, error=error)
                raise
            outcome = without_result(error)
            ended = yield from self._end(outcome)
        self.ended(ended, outcome, doing)

    def ended(self, ended: Settled | Lost, outcome: Outcome, doing: str) -> None:
        """Note how the end of the claim went; raises LeaseLost."""
        if isinstance(ended, Lost):
            self.lose()
            raise LeaseLost(self.record.key, doing)
        self.record = ended.record
        if self.story is not None:
            self.story.ended(self, outcome)
        if self.outbox is not None and self.paused is None:
            self.hand_over()
        self.settled = outcome.status  # last: after an earlier interrupt, the claim is ended again

    def _end(self, outcome: Outcome, commit: steps.Commit | None = None) -> Steps[Settled | Lost]:
        if self.settled is not None or self._process != worker.generation:
            self._check_open()
        self.ending = True
        if self.outbox is not None:
            outcome = self.carrying(outcome)
        return steps.end(
            self.store,
            self.record,
            outcome,
            self.policy,
            clock=self.clock,
            until=partial(
                self.limit,
                2 if outcome.result is None or commit is not None else 1,
                succeeded=outcome.status == COMPLETED and commit is None,
            ),
            commit=commit,
            alone=self.is_alone,
        )


def claimed(key: str, entry: HeldClaim | CallOutcome[object]) -> HeldClaim:
    """Return the claim that was won, or raise Completed with the recorded answer."""
    if isinstance(entry, CallOutcome):
        raise Completed(key, entry.value)
    entry.thread = get_ident()
    return entry
