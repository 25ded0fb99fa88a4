"""The logic of a transaction that a record has joined: two generators, which ``transaction.py`` drives with the body between them.

They yield the requests of the connection's session, and those :class:`Apart` for the store. Drive them with
``core/whole.py``: they must see every interrupt. What follows when nothing was committed is in ``aftermath.py``.
"""

import contextlib
import os
from collections.abc import Callable

from onceward.claim import heartbeat
from onceward.claim.aftermath import Aftermath, OfClaim, ended_by_body
from onceward.claim.ends import EndingClaim
from onceward.core import retries, steps, worker
from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.record import Record
from onceward.core.steps import Lost
from onceward.errors import ForkedClaim, LeaseLost, OncewardError, Parked, ResultNotRecorded, StoreError
from onceward.results.outcomes import warn_of_missing
from onceward.stores.capabilities import Anew, Ended, Session, SessionTransport, TransactionState
from onceward.stores.contract import Store

_OPEN: dict[int, int] = {}  # id(connection) to id() of the Joined that began there last


class Joined:
    """A transaction, and the record of a claim that was made before it.

    Args:
        session: the caller's connection.
        place: its id.
        store: the ledger.
        key: the key.
        held: the claim; None while a transaction that makes its own has not.
        undo: what the claim's own guard calls after an interrupt, to roll back.

    Attributes:
        entered: whether its transaction can be open.
        committed: whether effect and record were committed.
    """

    def __init__(
        self,
        session: Session,
        place: int,
        store: Store,
        key: str,
        held: EndingClaim | None,
        undo: Callable[[], None],
    ) -> None:
        self.session = session
        self.held = held
        self.entered = False
        self.committed = False
        self._place = place
        self._store = store
        self._both = SessionTransport(session, store)
        self._key = key
        self._undo = undo
        self._after: Aftermath | None = None
        self._inside: Record | None = None  # of a claim that was made before, as it was last written here
        self._raised: BaseException | None = None  # by the body
        self._process = worker.generation

    # --- the way in -----------------------------------------------------------------------------------------------

    def enter(self) -> Steps[None]:
        """Begin the transaction, and claim the key in it or check the claim that is held."""
        limit = boottime() + retries.CLAIM_PATIENCE
        while True:
            try:
                yield from self._begin()
            except Parked:
                # The refused claim may have parked the key: keep that write.
                yield from self._end(self.session.commit)
                raise
            except Anew:  # nothing has run yet
                yield from self._end(self.session.rollback)
                if boottime() > limit:
                    raise
            except BaseException:
                yield from self._end(self.session.rollback)
                raise
            else:
                return

    def _begin(self) -> Steps[None]:
        held = self.held
        assert held is not None
        self._opening()
        # Before: a heartbeat would wait for the transaction, and so would a signal handler that claims a key.
        held.paused, held.exclusive = self._undo, self.session.exclusive
        yield from self.session.begin()
        yield from self._confirmed(held)

    def _opening(self) -> None:
        _OPEN[self._place] = id(self)
        self.entered = True

    def _confirmed(self, held: EndingClaim) -> Steps[None]:
        """Check that the claim is mine now. From here on nobody can take it over while the transaction is open.

        Its beat leaps: no version that is rolled back with this transaction comes again.
        """
        renewals, leap = [(held.record, held.policy.lease)], int.from_bytes(os.urandom(5))
        (outcome,) = yield from steps.heartbeat(self._store, renewals, [held.policy], held.clock, leap)
        if isinstance(outcome, Lost):
            held.renewed(outcome)
            raise LeaseLost(self._key, "begin its transaction")
        self._after = self._aftermath(held)
        held.record = self._inside = outcome.record

    def _aftermath(self, held: EndingClaim) -> Aftermath:
        """Return what follows if a transaction of a claim that was made before it does not commit."""
        return OfClaim(held, held.record)

    # --- the way out ----------------------------------------------------------------------------------------------

    def leave(self, error: BaseException | None, result: object) -> Steps[None]:
        """Commit effect and record with ``result``; or roll back, after a body that raised ``error``."""
        held, after = self.held, self._after
        assert held is not None
        assert after is not None
        self._raised = error
        try:
            if error is None and self.session.state is not TransactionState.ENDED:
                yield from self._commit(held, after, result)
            else:
                yield from self._give_up(after, error)
        finally:
            yield from self._end(self.session.rollback)  # if an interrupt came before it was ended
            self.forget()
            if self.committed:  # after an interrupt nobody knows, and a relay sends what was
                held.hand_over()
            if held.settled is None:
                self._resume(held)

    def _resume(self, held: EndingClaim) -> None:
        """Go on with a claim that this transaction has not ended."""
        heartbeat.HEARTBEAT.watch(held)  # its beats were paused meanwhile

    def _commit(self, held: EndingClaim, after: Aftermath, result: object) -> Steps[None]:
        sent, committed, in_vain = False, False, held.in_vain
        try:
            yield from self.session.flush()
            yield from self._record(held, result)
            sent = True
            held.record = (yield from self.session.commit()) or held.record
        except Ended:
            yield from self._give_up(after, None)
        except BaseException as met:
            held.in_vain = in_vain  # what was completed in vain here is rolled back with its effect
            error = self._rolled_back(met) if isinstance(met, ResultNotRecorded) else met
            if sent and self.session.state is not TransactionState.OPEN:
                yield from self.session.rollback()  # the caller can use the connection while the store is asked
                committed = yield from after.was_committed(error)
            else:
                with contextlib.suppress(StoreError):  # the caller must see the commit's error
                    yield from self._give_up(after, error)
            if error is not met:
                raise error from met
            if not committed or not isinstance(error, OncewardError):  # also an interrupt
                raise
        self.committed = True

    def _record(self, held: EndingClaim, result: object) -> Steps[None]:
        """Write to the record what commits with the effect."""
        return held.success(result)()

    def _rolled_back(self, error: ResultNotRecorded) -> StoreError:
        """Return the error for a record that could not join: unlike elsewhere, the effect can be repeated at once."""
        cause = error.__cause__
        again = isinstance(cause, Anew) or self.session.state is TransactionState.LOST
        why = f"{self._key}: the transaction failed, and the effect was rolled back with its record: {cause}"
        return StoreError(why, transient=again)

    def _give_up(self, after: Aftermath, error: BaseException | None) -> Steps[None]:
        """Roll back, and record why. Raises for a body that has ended the transaction itself, and maybe begun another."""
        mine = True
        try:
            mine = self.session.state is not TransactionState.ENDED
            if self.session.state is TransactionState.OPEN:
                mine = yield from self.session.began_here()
            yield from self._end(self.session.rollback)
        except StoreError:
            if self.session.state is TransactionState.OPEN:
                raise  # else the connection is lost, and the store tells what the body has committed
        if not mine or error is None:
            yield from after.ended_early()
            raise ended_by_body(self._key) from self._raised
        yield from after.failed(error)

    # --- rolling back ---------------------------------------------------------------------------------------------

    def undo(self) -> Steps[None]:
        """Roll back if this transaction is still open, but no later one on its connection."""
        if not self.is_last():
            return
        if self.session.state is not TransactionState.OPEN:
            yield from self.session.rollback()  # an interrupt came before BEGIN was sent: the driver still counts it
        elif (yield from self.session.began_here()):
            yield from self._end(self.session.rollback)

    def is_last(self) -> bool:
        """Return whether no other transaction of ours began on the connection since."""
        return _OPEN.get(self._place) == id(self)

    def _end(self, ending: Callable[[], Steps[object]]) -> Steps[None]:
        """End the transaction by the session's commit, or roll back."""
        if worker.generation != self._process:
            return  # the connection is the parent's: any use of it here could undo what others commit meanwhile
        try:
            if self.session.state is TransactionState.OPEN:
                yield from ending()
        finally:
            yield from self.session.rollback()  # also a commit that failed

    def forget(self) -> None:
        """Note that the transaction is over. One that never began leaves alone what another holds."""
        if not self.entered:
            return
        self.entered = False
        _OPEN.pop(self._place, None)
        if self.held is not None:
            if not self.committed and self._after is not None and self.held.record is self._inside:
                self._after.untold()
            self.held.paused = None

    @property
    def stands(self) -> bool:
        """Whether the claim is not one that was rolled back with this transaction."""
        return True

    def warn(self) -> None:
        """Warn if what was committed has no result."""
        if self.committed and self.held is not None:
            warn_of_missing(self.held.record, 4)

    def tell(self) -> None:
        """Tell observers what has happened. Call it when nothing is locked, because they can use the ledger."""
        for claim in (self.held, *(self._after.ended if self._after is not None else ())):
            if claim is not None:
                claim.tell()

    # --- as a transport -------------------------------------------------------------------------------------------

    def exchange(self, request: object) -> object:
        """Send a request of the session, or one for the store, and return its reply."""
        if worker.generation != self._process:
            raise ForkedClaim(self._key)
        return self._both.exchange(request)

    async def exchange_async(self, request: object) -> object:
        """As :meth:`exchange`, awaiting it."""
        if worker.generation != self._process:
            raise ForkedClaim(self._key)
        return await self._both.exchange_async(request)
