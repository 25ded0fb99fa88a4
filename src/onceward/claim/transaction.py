"""An effect in the ledger's own database that commits together with its record: both, or neither."""

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from onceward.claim import forks, heartbeat
from onceward.claim.claim import Claim
from onceward.claim.running import CURRENT
from onceward.core import protocol, steps
from onceward.core.drivers import Steps, drive
from onceward.core.steps import Bid, Lost, Refused, Won
from onceward.errors import Completed, ForkedClaim, LeaseLost, OncewardError, Parked, ResultNotRecorded, StoreError
from onceward.observe.events import Event
from onceward.stores.capabilities import TRANSACTION, Session
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.claim.guard import Guard
    from onceward.claim.held import HeldClaim

C = TypeVar("C")
_OPEN: dict[int, int] = {}  # id(connection) to id() of the Transaction that began there last


class Transaction(Generic[C]):
    """A transaction that ends with the completion of a key.

    Attributes:
        connection: where the body writes its effect. The body must not commit or roll back.
        result: what duplicates get; set it in the body.
    """

    _entered = False  # and not left

    def __init__(self, store: Store, connection: C, guard: "Guard | None", key: str) -> None:
        self._join = TRANSACTION.needed(store)
        self.connection = connection
        self.result: object = None
        self._held: HeldClaim
        self._store = store
        self._guard = guard  # None when the claim was made before the transaction
        self._key = key
        self._session: Session
        self._bid: Bid | None = None
        self._outer: HeldClaim | None = None
        self._process = forks.generation
        self._events: list[Event] = []  # told after the transaction, as are those of the claims
        self._told: list[HeldClaim] = []

    @property
    def claim(self) -> Claim:
        """The claim. Its ``fence``, ``attempt`` and ``key()`` are useful in the body."""
        return self._held

    def __del__(self) -> None:
        """Roll back if an interrupt came when the block ended: otherwise the file stays locked for everybody.

        It can run at any moment, in any thread, and when the interpreter exits.
        """
        if self._entered:
            with contextlib.suppress(Exception):
                self.undo()

    def undo(self) -> None:
        """Roll back if this transaction is still open, but no later one on its connection.

        The driver may refuse it outside the connection's own thread. In a forked child, the transaction is the parent's.
        """
        if forks.generation != self._process or not self._entered:
            return
        if _OPEN.get(id(self.connection)) == id(self) and self._session.is_open:
            with contextlib.suppress(StoreError):
                if self._session.unmark():  # else it is another transaction
                    self._end(self._session.rollback)
        if not self._session.is_open:
            self._entered = False
            self._held.paused = None

    @classmethod
    def of_key(cls, guard: "Guard", key: str, connection: C) -> "Transaction[C]":
        """Return a transaction of claim, effect and completion."""
        return cls(guard.store, connection, guard, key)

    @classmethod
    def of_claim(cls, claim: "HeldClaim", connection: C) -> "Transaction[C]":
        """Return a transaction of the effect and completion of a held claim."""
        made = cls(claim.store, connection, None, claim.record.key)
        made._held = claim
        return made

    def __enter__(self) -> Self:
        if self._guard is None:
            self._held.check_own()
        self._session = session = self._join(self.connection)
        try:
            self._execute(session.begin)
            if self._guard is None:
                self._check_held()
            else:
                self._held = self._claim(self._guard)
            self._execute(session.mark)
            _OPEN[id(self.connection)] = id(self)
            self._outer = CURRENT.get()
            self._entered = True
            self._held.paused = self.undo if self._guard is None else _nothing
            CURRENT.set(self._held)
        except Parked:
            # The refused claim may have parked the key: keep that write.
            self._end(self._session.commit)
            self._tell()
            raise
        except BaseException:
            self._end(self._session.rollback)
            self._entered = False
            if hasattr(self, "_held") and self._held.paused:  # interrupted at the last moment
                self._held.paused = None
                CURRENT.set(self._outer)
            if not self._told or self._guard is None:  # else a claim was made and rolled back
                self._tell()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        finally:
            if not self._held.inherited and (error is None or isinstance(error, Exception)):
                self._tell()

    def _leave(self, error: BaseException | None) -> None:
        try:
            CURRENT.set(self._outer)
            if self._held.inherited:  # so is the connection: any use of it here would harm the parent's
                if error is None:
                    self._held.check_own()
                return
            if self._ended_early():
                self._park_after_early_end(error)
            elif error is None:
                self._commit()
            else:
                self._end(self._session.rollback)
                self._record_failure(error)
        finally:
            self._end(self._session.rollback)  # if an interrupt came before it was ended
            self._entered = False
            _OPEN.pop(id(self.connection), None)
            self._held.paused = None
            if self._held.inherited:
                pass
            elif self._held.settled is None and self._guard is not None:
                self._held.let_go()  # it was made in the transaction, and rolled back with it
            elif self._held.settled is None:
                heartbeat.HEARTBEAT.watch(self._held)  # its beats were paused meanwhile

    def _claim(self, guard: "Guard") -> "HeldClaim":
        bid = self._bid = guard.bid(self._key, None)
        # Do not wait: no other run can end while this transaction holds the file.
        bid = self._bid = bid._replace(policy=bid.policy._replace(on_busy="raise"))
        told, since = guard.observers.are_listening(), bid.clock()
        outcome = drive(steps.claim(self._store, bid), self._session)
        if told or isinstance(outcome, Refused):
            self._events = guard.events_of(outcome, since)
        if isinstance(outcome, Won):
            claim = guard.held(outcome, bid.policy, told=told)
            self._told.append(claim)
            return claim
        raise Completed(self._key, guard.replays.answer(outcome, bid.clock()).value)

    def _check_held(self) -> None:
        """Check that the claim is mine now. Nobody can take it over while the transaction holds the file."""
        claim = self._held
        if claim.settled is not None:
            raise OncewardError(f"{self._key}: this claim was ended before ({claim.settled})")
        asked = [(claim.record, claim.policy.lease)]
        (outcome,) = drive(steps.heartbeat(self._store, asked, [claim.policy], claim.clock), self._session)
        if isinstance(outcome, Lost):
            claim.renewed(outcome)
            raise LeaseLost(self._key, "begin its transaction")

    def _ended_early(self) -> bool:
        """Tell whether the body ended the transaction, even if it has begun another one since."""
        if not self._session.is_open:
            return True
        if self._session.unmark():
            return False
        self._end(self._session.rollback)
        return True

    def _commit(self) -> None:
        held = self._held.record
        try:
            drive(self._held.success(self.result)(), self._session)
            self._execute(self._session.commit)
        except BaseException as error:
            if not self._was_committed():
                self._held.reopened(held)
                self._record_failure(error)
                if isinstance(error, ResultNotRecorded):
                    raise StoreError(f"{error}. The effect was rolled back with it") from error
                raise
            if not isinstance(error, OncewardError):
                raise  # an interrupt
        self._held.warn()

    def _was_committed(self) -> bool:
        """After a commit that raised, roll back. If there is nothing to roll back, ask the ledger for the result."""
        if self._session.is_open or self._held.settled is None:
            with contextlib.suppress(StoreError):  # the caller must see the commit's error
                self._end(self._session.rollback)
            return False
        # The database may have rolled back by itself, an interrupt came after the commit, or the disk failed during it.
        mine = self._held.record
        try:
            held = drive(self._store.load(mine.key), self._store).record
        except OncewardError:
            return False  # the next write of the claim finds out
        return held is not None and (held.owner, held.fence, held.beat) == (mine.owner, mine.fence, mine.beat)

    def _record_failure(self, error: BaseException) -> None:
        """Count the attempt of a body that raised. Its effect is undone, so the key needs no other protection."""
        if self._guard is None or not isinstance(error, Exception):
            return  # a claim made before the transaction is ended by its own guard
        try:
            self._again(lambda claim: claim.failing(error))
        except Exception as trouble:  # the body's own exception goes on, with a note
            error.add_note(f"onceward: and then {trouble}")

    def _park_after_early_end(self, error: BaseException | None) -> None:
        reason = "the body committed or rolled back the transaction itself, so its effect may or may not stand"
        if self._guard is None:
            self._held.paused = None
            self._held.park(reason)
        else:
            self._again(lambda claim: claim.leaving(protocol.parked(reason), "park it"))
        raise OncewardError(
            f"{self._key}: {reason}, without the record. The key is parked: look at the effect, then `onceward clear` or "
            "`onceward unpark` it. Leave commit and rollback to the with statement (executescript() commits, too)"
        ) from error

    def _again(self, ending: "Callable[[HeldClaim], Steps[object]]") -> None:
        """Claim the key again in a separate transaction, and end it with ``ending(claim)``."""
        assert self._bid is not None
        assert self._guard is not None
        self._execute(self._session.begin)
        try:
            outcome = drive(steps.claim(self._store, self._bid), self._session)
            if isinstance(outcome, Won):
                claim = self._guard.held(outcome, self._bid.policy, told=self._held.story is not None)
                if claim.story is not None and self._held.story is not None:
                    claim.story.began = self._held.story.began
                drive(ending(claim), self._session)
                self._told.append(claim)
            self._execute(self._session.commit)
        finally:
            self._end(self._session.rollback)  # unless it is committed

    def _tell(self) -> None:
        """Tell observers what has happened. Nothing is locked now, so they can use the ledger."""
        events, self._events = self._events, []
        if self._guard is not None:
            self._guard.observers.tell(*events)
        for claim in (*self._told, *([self._held] if self._guard is None else [])):
            claim.tell()

    def _end(self, ending: Callable[[], None]) -> None:
        """End the transaction, if there is one, by the session's commit or rollback."""
        if forks.generation != self._process:
            return  # the connection is the parent's: any use of it here could undo what others commit meanwhile
        try:
            if self._session.is_open:
                ending()
        finally:
            if self._session.is_open:  # a commit that failed
                self._session.rollback()

    def _execute(self, step: Callable[[], None]) -> None:
        if forks.generation != self._process:
            raise ForkedClaim(self._key)
        step()


def _nothing() -> None:
    """Serve as ``paused`` of a claim that no guard ends: the transaction ends it."""
