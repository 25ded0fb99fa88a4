"""A step whose effect and entry in the record commit together: both, or neither. The claim goes on.

It is a transaction of a held claim that ends with a step, not with the completion.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onceward.claim.claim_transaction import ClaimTransaction
from onceward.claim.ends import EndingClaim
from onceward.claim.joined import apart
from onceward.claim.stepping.handler_steps import HandlerSteps, RecordedStep
from onceward.claim.stepping.kept import keep
from onceward.claim.stepping.notes import Note, with_notes
from onceward.core.drivers import Steps
from onceward.core.step_writes import write_steps
from onceward.core.steps import Lost, Won
from onceward.errors import LeaseLost, OncewardError, StepMade, StoreError
from onceward.keys.ledger_keys import step_name
from onceward.results.codec import Codec
from onceward.results.step_entries import entries_of

if TYPE_CHECKING:
    from onceward.observe.spans import CallSpan

C = TypeVar("C")


class StepTransaction(ClaimTransaction[C]):
    """A transaction that ends with the record of a step. Its claim goes on, whether it was committed or not."""

    _span: "CallSpan | None" = None
    _name = ""  # in the record, once it has begun
    _since = 0.0
    _note: Note | None = None
    _won: Won | None = None  # the answer to the write of the step

    def __init__(self, claim: EndingClaim, chain: HandlerSteps, step: object, connection: C) -> None:
        super().__init__(claim, connection)
        self._chain, self._step = chain, step

    def _enter_span(self) -> None:
        self._span = self._held.observers.begin_step(step_name(self._step))
        if self._span is not None:
            self._span.enter()

    def _leave_span(self, error: BaseException | None) -> None:
        if self._span is not None:
            self._span.leave()
            self._span.end(error)

    def _entering(self) -> Steps[None]:
        """Begin the transaction; raises StepMade if an earlier attempt has made the step."""
        chain, self._name = self._chain, ""
        name, entry = chain.begin(self._step, parks=True)
        if entry is not None:
            chain.use(name)
            self.result = yield from apart(chain.recorded(RecordedStep(entry, Codec())))
            raise StepMade(self._key, name, self.result)
        chain.use(name, self)  # before the transaction: of several threads, one makes the step
        self._name = name
        chain.notes.check_room(name)
        self._since = self._held.clock()
        yield from super()._entering()
        chain.transacts = name

    def _record(self, held: EndingClaim, result: object) -> Steps[None]:
        until: Callable[[], float] = lambda: held.clock() + held.remaining
        self._note = note = self._chain.notes.success(self._name, Codec(), result, held.clock() - self._since)
        if note.large is not None:
            yield from keep(held, note.name, note.large, until)
        outcome = yield from write_steps(
            held.store,
            held.record,
            partial(with_notes, [note]),
            held.policy,
            lease=lambda: held.renewal,
            clock=held.clock,
            until=until,
        )
        if isinstance(outcome, Lost):
            held.lose()
            raise LeaseLost(held.record.key, f"record its step {note.name!r}")
        held.record = self._inside = outcome.record
        self._won = outcome

    def _commit(self, held: EndingClaim, result: object) -> Steps[None]:
        yield from super()._commit(held, result)
        if self._won is not None:
            held.renewed(self._won._replace(record=held.record))

    def _stands(self, outcome: Won | Lost) -> bool:
        entry = entries_of(None if outcome.record is None else outcome.record.steps).get(self._name)
        if entry is None or not entry.done:
            return False
        self._held.renewed(outcome)
        return True

    def _unknown(self, trouble: OncewardError) -> None:
        """Begin nothing more in this attempt."""
        self._chain.notes.failed = trouble

    def _forget(self) -> None:
        if self.entered:
            self._chain.transacts = None
            held = self._held
            if not self.committed and held.record is self._inside and held.record.steps != self._before.steps:
                why = f"{self._key}: nobody could say whether its step {self._name!r} was committed"
                self._unknown(StoreError(why, transient=True))
        super()._forget()
        self._chain.notes.leave(self._name)
        if not self.committed:
            self._chain.unuse(self._name, self)

    def _warn(self) -> None:
        """Warn if what was committed has no result, and tell observers."""
        if self.committed and self._note is not None:
            self._chain.notes.tell(self._note)
