"""How a claim ends: the steps that record it, which guards and transactions drive."""

import sys
from typing import TYPE_CHECKING, cast

from onceward.claim.called import OUTCOME, RETURNED, Call, NotBegun
from onceward.claim.lease import Lease
from onceward.claim.open_transactions import warn_of_open
from onceward.core import protocol, steps, worker
from onceward.core.drivers import Steps
from onceward.core.protocol import Outcome
from onceward.core.record import COMPLETED, RELEASED, Record
from onceward.core.steps import Lost, Settled
from onceward.errors import LeaseLost, OncewardError, ResultNotRecorded
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
    from onceward.outbox.pending import PendingMessages


class EndingClaim(Lease):
    """A claim, its steps and messages, and how all of that is recorded when it ends."""

    chain: "HandlerSteps | None" = None  # its steps, if its handler has any
    outbox: "PendingMessages | None" = None  # its messages, likewise
    sends = True  # whether what it sends leaves with its completion
    is_alone = True  # whether nobody else can end it as its owner
    in_vain: ResultNotRecorded | None = None  # its handler has succeeded, and that could not be recorded

    def check_not_stopped(self) -> None:
        """Raise Parked or StoreError if a step has stopped this attempt: then nothing completes it."""
        if self.chain is not None and (refusal := self.chain.refusal()) is not None:
            raise refusal

    def outcome_of(self, call: Call) -> Outcome:
        """Return what is to be recorded of a call that has returned. Its result is encoded once."""
        outcome = call.get(OUTCOME)
        if outcome is None:
            self._ended = None  # an earlier try to end it does not count
            if self.story is not None:
                self.story.handled(self.clock())
            outcome = call[OUTCOME] = completion(self.codec, self.policy, call[RETURNED])
        return cast("Outcome", outcome)

    def warn(self) -> None:
        """Warn of a completion without its result, or inside a transaction of the caller's.

        Call it after the recording: a filter can make the warning an error.
        """
        if self.settled != COMPLETED:
            return
        if self.record.result is None:
            warn_of_missing(self.record)
        if not self.paused and ("django.db" in sys.modules or "sqlalchemy" in sys.modules):
            warn_of_open(self.store, self.record.key)

    def completing(self, call: Call) -> Steps[None]:
        """Record a completion; raises LeaseLost or ResultNotRecorded, never what looks like the handler's failure.

        If the store does not take the result within one lease, but heartbeats, it is left out. It has one more lease for the rest.
        You can drive it again.
        """
        outcome, again = self.outcome_of(call), True
        while True:
            end = self._end(outcome)  # not within the try: an ended claim is no failed exchange
            try:
                ended = yield from end
            except OncewardError as error:
                lasting = not getattr(error, "transient", False)
                if not lasting or not again:
                    if outcome.result is not None and (lasting or self.clock() < self.limit(2, succeeded=True)):
                        outcome = without_result(error)  # the completion matters more than the result
                    else:
                        self.telling.note("not_recorded", self.record, error=error)
                        self.in_vain = ResultNotRecorded(self.record.key, call[RETURNED], str(error))
                        raise self.in_vain from error
                again = False
            else:
                return self.ended(ended, outcome, "record its result")

    def committing(self, call: Call, commit: steps.Commit) -> Steps[None]:
        """Record a completion together with its effect. While neither is made, the handler gets the error."""
        outcome = self.outcome_of(call)
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
            self.story.ended(self.record, outcome, now=self.clock(), remaining=self.remaining)
        if self.outbox is not None and self.paused is None:
            self.hand_over()
        self.settled = outcome.status  # last: after an earlier interrupt, the claim is ended again

    def _end(self, outcome: Outcome, commit: steps.Commit | None = None) -> Steps[Settled | Lost]:
        if self.settled is not None or self._process != worker.generation:
            self._check_open()
        self.ending = True
        if self.outbox is not None:
            outcome = self.carrying(outcome)
        until = lambda: self.limit(
            2 if outcome.result is None or commit is not None else 1,
            succeeded=outcome.status == COMPLETED and commit is None,
        )
        return steps.end(self.store, self.record, outcome, self.policy, self.clock, until, commit, self.is_alone)

    def carrying(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the messages that leave with it. The claim must be ``ending``."""
        if self.outbox is None or outcome.status != COMPLETED:
            return outcome
        return outcome._replace(unsent=self.outbox.text())

    def hand_over(self) -> None:
        """Let this process send the messages that a completion carried. Call it when that is committed."""
        if self.outbox is not None:
            self.outbox.hand_over(self.store, self.record, self.observers)

    def reopened(self, record: Record, messages: int = 0) -> None:
        """Undo an end that was rolled back: ``record`` is current again, and so are the first ``messages``."""
        super().reopened(record)
        self.sends = True
        if self.outbox is not None:
            self.outbox.cut(messages)
