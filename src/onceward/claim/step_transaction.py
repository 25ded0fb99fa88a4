"""A step whose effect and entry in the record commit together: both, or neither. The claim goes on.

It is a transaction of a held claim (``claim/transaction.py``) that ends with a step, not with the completion.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onceward.claim.aftermath import Aftermath, OfClaim, apart
from onceward.claim.ends import EndingClaim
from onceward.claim.joined import Joined
from onceward.claim.stepping.handler_steps import HandlerSteps, RecordedStep
from onceward.claim.stepping.kept import keep
from onceward.claim.stepping.writer import Note, with_notes
from onceward.claim.transaction import ClaimTransaction
from onceward.core.drivers import Steps
from onceward.core.step_writes import write_steps
from onceward.core.steps import Lost, Won
from onceward.errors import LeaseLost, OncewardError, StepMade, StoreError
from onceward.keys.ledger_keys import step_name
from onceward.results.codec import Codec
from onceward.results.step_entries import entries_of
from onceward.stores.capabilities import Session

if TYPE_CHECKING:
    from onceward.observe.spans import CallSpan

C = TypeVar("C")


class StepTransaction(ClaimTransaction[C]):
    """A transaction that ends with the record of a step."""

    _span: "CallSpan | None" = None

    def __init__(self, claim: EndingClaim, chain: HandlerSteps, name: object, connection: C) -> None:
        super().__init__(claim, connection)
        self._chain, self._name = chain, name

    def _join_record(self, session: Session) -> Joined:
        return JoinedStep(session, id(self.connection), self._before, self._undo_here, self._chain, self._name)

    def _enter_span(self) -> None:
        self._span = self._held.observers.begin_step(step_name(self._name))
        if self._span is not None:
            self._span.enter()

    def _leave_span(self, error: BaseException | None) -> None:
        if self._span is not None:
            self._span.leave()
            self._span.end(error)

    def _clean_up(self, joined: Joined, error: BaseException) -> None:
        if isinstance(error, StepMade):
            self.result = error.result
        super()._clean_up(joined, error)


class JoinedStep(Joined):
    """A transaction, and the step in it."""

    _name = ""  # in the record, once it has begun
    _since = 0.0
    _note: Note | None = None
    _won: Won | None = None  # the answer to the write of the step

    def __init__(
        self,
        session: Session,
        place: int,
        claim: EndingClaim,
        undo: Callable[[], None],
        chain: HandlerSteps,
        step: object,
    ) -> None:
        super().__init__(session, place, claim.store, claim.record.key, claim, undo)
        self._claim = claim
        self._chain = chain
        self._step = step

    def enter(self) -> Steps[None]:
        """Begin the transaction; raises StepMade if an earlier attempt has made the step."""
        chain = self._chain
        name, entry = chain.begin(self._step, parks=True)
        if entry is not None:
            chain.use(name)
            raise StepMade(
                self._claim.record.key, name, (yield from apart(chain.recorded(RecordedStep(entry, Codec()))))
            )
        chain.use(name, self)  # before the transaction: of several threads, one makes the step
        self._name = name
        chain.notes.check_room(name)
        self._since = self._claim.clock()
        yield from super().enter()
        chain.transacts = name

    def _aftermath(self, held: EndingClaim) -> Aftermath:
        return OfStep(held, self._chain, self._name)

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

    def _commit(self, held: EndingClaim, after: Aftermath, result: object) -> Steps[None]:
        yield from super()._commit(held, after, result)
        if self._won is not None:
            held.renewed(self._won._replace(record=held.record))

    def forget(self) -> None:
        """Note that the transaction is over."""
        if self.entered:
            self._chain.transacts = None
        super().forget()
        self._chain.notes.room.leave(self._name)
        if not self.committed:
            self._chain.unuse(self._name, self)

    def warn(self) -> None:
        """Warn if what was committed has no result, and tell observers."""
        if self.committed and self._note is not None:
            self._chain.notes.tell(self._note)


class OfStep(OfClaim):
    """For a step. Its claim goes on, whether the transaction was committed or not."""

    def __init__(self, claim: EndingClaim, chain: HandlerSteps, name: str) -> None:
        super().__init__(claim, claim.record)
        self._chain = chain
        self._name = name

    def _stands(self, outcome: Won | Lost) -> bool:
        entry = entries_of(None if outcome.record is None else outcome.record.steps).get(self._name)
        if entry is None or not entry.done:
            return False
        self._claim.renewed(outcome)
        return True

    def untold(self) -> None:
        """As for any claim. If the step was written, nothing more begins in this attempt."""
        if self._claim.record.steps != self._before.steps:
            why = f"{self._before.key}: nobody could say whether its step {self._name!r} was committed"
            self._unknown(StoreError(why, transient=True))
        super().untold()

    def _unknown(self, trouble: OncewardError) -> None:
        self._chain.notes.failed = trouble
