"""A transaction of the effect and completion of a claim that was made before. If it does not commit, the claim is as it was.

One of a step ends with the step's entry in the record, not with the completion, and the claim goes on.
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onceward.claim.called import running_loop
from onceward.claim.ends import EndingClaim
from onceward.claim.joined import ENDED, apart
from onceward.claim.stepping.handler_steps import HandlerSteps, RecordedStep
from onceward.claim.stepping.notes import Note, keep, with_notes
from onceward.claim.transaction import RecordTransaction
from onceward.core import protocol, steps
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply
from onceward.core.step_writes import write_steps
from onceward.core.steps import Lost, Won
from onceward.errors import LeaseLost, OncewardError, StepMade, StoreError
from onceward.keys.ledger_keys import step_name
from onceward.results.codec import Codec
from onceward.results.outcomes import describe
from onceward.results.step_entries import entries_of

if TYPE_CHECKING:
    from onceward.observe.spans import CallSpan

C = TypeVar("C")


class ClaimTransaction(RecordTransaction[C]):
    """A transaction of the effect and completion of a held claim."""

    _before: Record  # of the claim, before the transaction
    _messages = 0  # that it had then
    _inside: Record | None = None  # as it was last written in the transaction

    def __init__(self, claim: EndingClaim, connection: C) -> None:
        super().__init__(claim.store, claim.record.key, connection, claim)

    def _prepare(self, *, awaited: bool) -> None:
        held = self._held
        held.check_own()
        held.check_not_stopped()
        held.check_usable()  # a refused transaction must not free what an outer one holds
        self._caller = _caller()
        super()._prepare(awaited=awaited)

    def _begin(self) -> Steps[None]:
        """Check that the claim is mine now. From here on nobody can take it over while the transaction is open.

        Its beat leaps: no version that is rolled back with this transaction comes again.
        """
        held = self._held
        self._opening()
        # Before: a heartbeat would wait for the transaction, and so would a signal handler that claims a key.
        held.paused, held.exclusive = self._undo_here, self.session.exclusive
        yield from self.session.begin()
        renewals, leap = [(held.record, held.policy.lease)], int.from_bytes(os.urandom(5))
        (outcome,) = yield from steps.heartbeat(self._store, renewals, [held.policy], held.clock, leap)
        if isinstance(outcome, Lost):
            held.renewed(outcome)
            raise LeaseLost(self._key, "begin its transaction")
        self._before, self._messages = held.record, 0 if held.outbox is None else held.outbox.count
        held.record = self._inside = outcome.record

    def _undo_here(self) -> None:
        """Roll back after an interrupt, for the claim's guard.

        A cancelled handler may have left the body to another thread or task, which still uses the connection. It ends the
        transaction itself: effect and record commit, or neither. Rolled back under it, its next statement would commit alone.
        """
        if self._caller == _caller():
            self.undo()

    def _failed(self, error: BaseException) -> Steps[None]:
        """Go on with the claim as it was, unless the body has committed what began the transaction."""
        if (yield from self._has_left()):
            yield from self._refuse_ended(error)
        self._reopen()

    def _has_left(self) -> Steps[bool]:
        """Return whether the record shows the renewal that began the transaction, which was rolled back."""
        renewal = self._held.record
        try:
            reply: Reply = yield from apart(self._store.load(renewal.key))
        except StoreError:  # the caller must see the body's error
            return False
        held = reply.record
        return held is not None and held.version[:2] == renewal.version[:2] and held.beat >= renewal.beat

    def _reopen(self) -> None:
        self._held.reopened(self._before, self._messages)

    def _park(self) -> Steps[None]:
        self._reopen()
        yield from apart(self._held.leaving(protocol.parked(ENDED), "park it"))

    def _was_committed(self, error: BaseException) -> Steps[bool]:
        """Renew the claim as it was: that waits for the transaction, and fails if it was committed."""
        claim = self._held
        renewals = [(self._before, claim.policy.lease)]

        def beat() -> Steps[list[Won | Lost]]:
            return apart(steps.heartbeat(claim.store, renewals, [claim.policy], claim.clock))

        try:
            (outcome,) = yield from self._ask_again(beat, error)
        except BaseException as trouble:
            self._reopen()  # also after an interrupt: what was not committed must not be written with the next end
            self._unknown(
                trouble if isinstance(trouble, OncewardError) else StoreError(describe(trouble), transient=True)
            )
            raise
        if self._stands(outcome) and outcome.record is not None:
            claim.record = outcome.record  # with its times, which came with the lost reply
            return True
        if outcome.record is not None and isinstance(outcome, Won) and outcome.record.beat >= claim.record.beat:
            yield from self._refuse_ended(error)
        self._reopen()
        claim.renewed(outcome)
        return False

    def _stands(self, outcome: Won | Lost) -> bool:
        """Return whether the answer to a renewal shows that the transaction was committed."""
        held, mine = outcome.record, self._held.record
        if isinstance(outcome, Won) or held is None or held.version[:2] != mine.version[:2]:
            return False  # what was renewed is in progress
        return held.beat >= mine.beat  # a relay may have its messages by now

    def _unknown(self, trouble: OncewardError) -> None:
        """Note that nobody can tell what the COMMIT did."""

    def _forget(self) -> None:
        """Note that the transaction is over. After two troubles in a row, nothing has put the claim's record back."""
        if self.entered and not self.committed and self._held.record is self._inside:
            self._held.record = self._before
        super()._forget()


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


def _caller() -> tuple[int, int]:
    """Return the ids of the thread and the task in which this is called."""
    loop = running_loop()
    return threading.get_ident(), 0 if loop is None else id(sys.modules["asyncio"].current_task(loop))
