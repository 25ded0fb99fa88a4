"""A transaction of the effect and completion of a claim that was made before. If it does not commit, the claim is as it was."""

import os
import sys
import threading
from typing import TypeVar

from onceward.claim.ends import EndingClaim
from onceward.claim.joined import ENDED, apart
from onceward.claim.running import running_loop
from onceward.claim.transaction import RecordTransaction
from onceward.core import protocol, steps
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply
from onceward.core.steps import Lost, Won
from onceward.errors import LeaseLost, OncewardError, StoreError
from onceward.results.outcomes import describe

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


def _caller() -> tuple[int, int]:
    """Return the ids of the thread and the task in which this is called."""
    loop = running_loop()
    return threading.get_ident(), 0 if loop is None else id(sys.modules["asyncio"].current_task(loop))
