"""The logic of a transaction that a record has joined: two generators, which ``transaction.py`` drives with the body between them.

They yield the requests of the connection's session, and those :class:`Apart` for the store. Drive them with
``core/whole.py``: they must see every interrupt.

If nothing was committed, or nobody knows whether it was, the store's own connection asks, by conditional writes. A write waits for the
row that a lost transaction may still hold, so it learns how that one ends. A read does not wait: what it does not find can still be
committed.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from onceward.claim import heartbeat
from onceward.claim.called import RETURNED, Call
from onceward.claim.ends import EndingClaim
from onceward.core import retries, worker
from onceward.core.clock import boottime
from onceward.core.drivers import Steps, mapped
from onceward.errors import ForkedClaim, OncewardError, Parked, ResultNotRecorded, StoreError
from onceward.results.outcomes import warn_of_missing
from onceward.stores.capabilities import Anew, Apart, Ended, Session, SessionTransport, TransactionState
from onceward.stores.contract import Store

T = TypeVar("T")
ENDED: Final = "the body committed or rolled back the transaction itself, so its effect may or may not stand"
_OPEN: dict[int, int] = {}  # id(connection) to id() of the Joined that began there last


def apart(verb: Steps[T]) -> Steps[T]:
    """Run steps on the store's own connection, in the middle of a transaction's."""
    return mapped(verb, Apart)


class Joined:
    """A transaction, and the record of a claim.

    Attributes:
        connection: the caller's.
        session: the same, for one entry of the block.
        held: the claim; None while a transaction that makes its own has not.
        entered: whether its transaction can be open.
        committed: whether effect and record were committed.
        others: the claims that have recorded that nothing was committed.
    """

    connection: object
    session: Session
    held: EndingClaim | None
    entered = False
    committed = False
    _both: SessionTransport
    _raised: BaseException | None = None  # by the body
    _process = -1

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self.others: list[EndingClaim] = []

    @property
    def _held(self) -> EndingClaim:
        if self.held is None:
            raise RuntimeError("this transaction was not entered, or was refused")
        return self.held

    # --- the way in -----------------------------------------------------------------------------------------------

    def _entering(self) -> Steps[None]:
        """Begin the transaction, and claim the key in it or check the claim that is held."""
        limit = boottime() + retries.CLAIM_PATIENCE
        while True:
            try:
                return (yield from self._begin())
            except BaseException as error:
                # The refused claim may have parked the key: keep that write.
                yield from self._end(self.session.commit if isinstance(error, Parked) else self.session.rollback)
                if not isinstance(error, Anew) or boottime() > limit:  # Anew: nothing has run yet
                    raise

    @abstractmethod
    def _begin(self) -> Steps[None]: ...

    def _opening(self) -> None:
        _OPEN[id(self.connection)] = id(self)
        self.entered = True

    # --- the way out ----------------------------------------------------------------------------------------------

    def _leaving(self, error: BaseException | None, result: object) -> Steps[None]:
        """Commit effect and record with ``result``; or roll back, after a body that raised ``error``."""
        held = self._held
        self._raised = error
        try:
            if error is None and self.session.state is not TransactionState.ENDED:
                yield from self._commit(held, result)
            else:
                yield from self._give_up(error)
        finally:
            yield from self._end(self.session.rollback)  # if an interrupt came before it was ended
            self._forget()
            if self.committed:  # after an interrupt nobody knows, and a relay sends what was
                held.hand_over()
            if held.settled is None:
                self._resume(held)

    def _resume(self, held: EndingClaim) -> None:
        """Go on with a claim that this transaction has not ended."""
        heartbeat.HEARTBEAT.watch(held)  # its beats were paused meanwhile

    def _commit(self, held: EndingClaim, result: object) -> Steps[None]:
        sent, committed, in_vain = False, False, held.in_vain
        try:
            yield from self.session.flush()
            yield from self._record(held, result)
            sent = True
            held.record = (yield from self.session.commit()) or held.record
        except Ended:
            yield from self._give_up(None)
        except BaseException as met:
            held.in_vain = in_vain  # what was completed in vain here is rolled back with its effect
            error = self._rolled_back(met) if isinstance(met, ResultNotRecorded) else met
            if sent and self.session.state is not TransactionState.OPEN:
                yield from self.session.rollback()  # the caller can use the connection while the store is asked
                committed = yield from self._was_committed(error)
            else:
                with contextlib.suppress(StoreError):  # the caller must see the commit's error
                    yield from self._give_up(error)
            if error is not met:
                raise error from met
            if not committed or not isinstance(error, OncewardError):  # also an interrupt
                raise
        self.committed = True

    def _record(self, held: EndingClaim, result: object) -> Steps[None]:
        """Write to the record what commits with the effect."""
        return held.completing(Call(None, {RETURNED: result}))

    def _rolled_back(self, error: ResultNotRecorded) -> StoreError:
        """Return the error for a record that could not join: unlike elsewhere, the effect can be repeated at once."""
        cause = error.__cause__
        again = isinstance(cause, Anew) or self.session.state is TransactionState.LOST
        why = f"{self._key}: the transaction failed, and the effect was rolled back with its record: {cause}"
        return StoreError(why, transient=again)

    def _give_up(self, error: BaseException | None) -> Steps[None]:
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
            yield from self._refuse_ended(self._raised)
        else:
            yield from self._failed(error)

    # --- what follows when nothing was committed with the record ----------------------------------------------------

    @abstractmethod
    def _failed(self, error: BaseException) -> Steps[None]:
        """Record that the body raised ``error``. The transaction was rolled back."""

    @abstractmethod
    def _park(self) -> Steps[None]:
        """Park the key: the body has ended the transaction. It is rolled back, if another was open."""

    @abstractmethod
    def _was_committed(self, error: BaseException) -> Steps[bool]:
        """Find out whether a COMMIT that raised ``error`` was made. If not, record the failure.

        Raises:
            StoreError: the store could not tell.
            OncewardError: the body has committed what began the transaction, and then lost the connection. The key is parked.
        """

    def _refuse_ended(self, error: BaseException | None) -> Steps[None]:
        """Park the key, and raise why: the body has ended the transaction itself."""
        yield from self._park()
        raise OncewardError(
            f"{self._key}: {ENDED}, without the record. The key is parked: look at the effect, then `onceward clear` or "
            "`onceward unpark` it. Leave commit and rollback to the with statement (executescript() commits, too)"
        ) from error

    def _ask_again(self, verb: Callable[[], Steps[T]], error: BaseException) -> Steps[T]:
        """Ask until the store answers, for one lease; after an interrupt, for CLAIM_PATIENCE."""
        claim = self._held
        limit = claim.limit(1) if isinstance(error, Exception) else claim.clock() + retries.CLAIM_PATIENCE
        try:
            return (yield from retries.retry_transient(verb, claim.clock, lambda: limit))
        except OncewardError as trouble:
            raise StoreError(
                f"{self._key}: the reply to its COMMIT was lost, and the ledger cannot tell what it did ({trouble}). Effect and "
                "record are both written, or neither is. Deliver it again",
                transient=True,
            ) from error

    # --- rolling back ---------------------------------------------------------------------------------------------

    def _undoing(self) -> Steps[None]:
        """Roll back if this transaction is still open, but no later one on its connection."""
        if not self._is_last():
            return
        if self.session.state is not TransactionState.OPEN:
            yield from self.session.rollback()  # an interrupt came before BEGIN was sent: the driver still counts it
        elif (yield from self.session.began_here()):
            yield from self._end(self.session.rollback)

    def _is_last(self) -> bool:
        """Return whether no other transaction of ours began on the connection since."""
        return _OPEN.get(id(self.connection)) == id(self)

    def _end(self, ending: Callable[[], Steps[object]]) -> Steps[None]:
        """End the transaction by the session's commit, or roll back."""
        if worker.generation != self._process:
            return  # the connection is the parent's: any use of it here could undo what others commit meanwhile
        try:
            if self.session.state is TransactionState.OPEN:
                yield from ending()
        finally:
            yield from self.session.rollback()  # also a commit that failed

    def _forget(self) -> None:
        """Note that the transaction is over. One that never began leaves alone what another holds."""
        if self.entered:
            self.entered = False
            _OPEN.pop(id(self.connection), None)
            if self.held is not None:
                self.held.paused = None

    def _warn(self) -> None:
        """Warn if what was committed has no result."""
        if self.committed:
            warn_of_missing(self._held.record, 4)

    def _tell(self) -> None:
        """Tell observers what has happened. Call it when nothing is locked, because they can use the ledger."""
        for claim in (self.held, *self.others):
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
