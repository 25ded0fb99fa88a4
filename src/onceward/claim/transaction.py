"""An effect in the ledger's own database that commits together with its record: both, or neither.

The methods of ``with`` and ``async with`` are here, and the body runs between them. The logic is in ``joined.py``.
"""

import contextlib
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from onceward.claim.claim import Claim
from onceward.claim.joined import Joined
from onceward.claim.running import CURRENT, enter_span, leave_span
from onceward.core import worker
from onceward.core.whole import drive_whole, drive_whole_async, shielded
from onceward.errors import Parked, StoreError
from onceward.stores.capabilities import TRANSACTION, Session, TransactionState
from onceward.stores.contract import Store

if TYPE_CHECKING:
    from onceward.claim.guard import Guard
    from onceward.claim.held import HeldClaim

C = TypeVar("C")


class Transaction(Generic[C]):
    """A transaction that ends with the completion of a key. Enter it with ``with``, or ``async with`` for an async connection.

    Attributes:
        connection: where the body writes its effect. The body must not commit or roll back.
        result: what duplicates get; set it in the body.
    """

    _joined: Joined | None = None
    _abandoned = False  # nobody waits for its beginning any more

    def __init__(self, store: Store, connection: C, guard: "Guard | None", key: str) -> None:
        self._join = TRANSACTION.needed(store)
        self.connection = connection
        self.result: object = None
        self._store = store
        self._guard = guard  # None when the claim was made before the transaction
        self._key = key
        self._before: HeldClaim | None = None  # that claim
        self._outer: HeldClaim | None = None
        self._process = worker.generation
        self._caller = (0, 0)

    @property
    def claim(self) -> Claim:
        """The claim. Its ``fence``, ``attempt`` and ``key()`` are useful in the body."""
        return self._held

    @property
    def _held(self) -> "HeldClaim":
        joined = self._inside
        if joined.held is None:
            raise RuntimeError("this transaction was refused")
        return joined.held

    @property
    def _inside(self) -> Joined:
        if self._joined is None:
            raise RuntimeError("this transaction was not entered")
        return self._joined

    @classmethod
    def of_key(cls, guard: "Guard", key: str, connection: C) -> "Transaction[C]":
        """Return a transaction of claim, effect and completion."""
        return cls(guard.store, connection, guard, key)

    @classmethod
    def of_claim(cls, claim: "HeldClaim", connection: C) -> "Transaction[C]":
        """Return a transaction of the effect and completion of a held claim."""
        made = cls(claim.store, connection, None, claim.record.key)
        made._before = claim
        return made

    def __enter__(self) -> Self:
        joined = self._prepared(awaited=False)
        try:
            drive_whole(joined.enter(), joined)
            CURRENT.set(joined.held)
            self._enter_span()
        except BaseException as error:
            self.undo()
            self._refused(joined, error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.set(self._outer)
        self._leave_span(error)
        joined = self._inside
        if self._is_parents(error):
            return
        try:
            drive_whole(joined.leave(error, self.result), joined)
            joined.warn()
        finally:
            if error is None or isinstance(error, Exception):
                joined.tell()

    async def __aenter__(self) -> Self:
        joined = self._prepared(awaited=True)
        try:
            await shielded(self._enter_async(joined), self._abandon)
            CURRENT.set(joined.held)
            self._enter_span()
        except BaseException as error:
            is_open = joined.session.state is TransactionState.OPEN
            if is_open and not isinstance(error, GeneratorExit):  # cancelled when it had just begun
                await shielded(drive_whole_async(joined.undo(), joined), joined.session.cut)
            self._refused(joined, error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.set(self._outer)
        self._leave_span(error)
        joined = self._inside
        if self._is_parents(error):
            return
        if isinstance(error, GeneratorExit):  # a closed coroutine must not await
            self.undo()
            return
        try:
            await shielded(drive_whole_async(joined.leave(error, self.result), joined), joined.session.cut)
            joined.warn()
        finally:
            if error is None or isinstance(error, Exception):
                joined.tell()

    async def _enter_async(self, joined: Joined) -> None:
        await drive_whole_async(joined.enter(), joined)
        if self._abandoned:
            self.undo()

    def _abandon(self) -> None:
        self._abandoned = True
        self._inside.session.cut()

    def _prepared(self, *, awaited: bool) -> Joined:
        if self._before is not None:
            self._before.check_own()
            self._before.check_not_stopped()
            self._before.check_usable()  # a refused transaction must not free what an outer one holds
        self._caller = _caller()
        session = self._join(self.connection)
        if session.awaited is not awaited:
            raise TypeError(
                f"{self._key}: this connection is for coroutines: enter its transaction with `async with`"
                if session.awaited
                else f"{self._key}: this connection blocks: enter its transaction with `with`, not `async with`"
            )
        self._outer = CURRENT.get()
        self._joined = self._join_record(session)
        return self._joined

    def _join_record(self, session: Session) -> Joined:
        # Not for a claim that the transaction makes: no guard ends it, and the reference would delay __del__.
        undo = _nothing if self._before is None else self._undo_here
        return Joined(session, id(self.connection), self._store, self._guard, self._key, self._before, undo)

    def _refused(self, joined: Joined, error: BaseException) -> None:
        """Clean up and tell observers: the body does not run."""
        CURRENT.set(self._outer)
        if not joined.entered or joined.session.state is not TransactionState.OPEN:
            joined.forget()
        if isinstance(error, Parked) or self._guard is None or joined.held is None:
            joined.tell()  # else a claim was made and rolled back

    def _enter_span(self) -> None:
        enter_span(self._held)

    def _leave_span(self, error: BaseException | None) -> None:
        leave_span(self._held)

    def _is_parents(self, error: BaseException | None) -> bool:
        """Return whether this is a forked child. Any use of the connection here would harm the parent's transaction."""
        if not self._held.inherited:
            return False
        self._inside.forget()
        if error is None:
            self._held.check_own()
        return True

    def __del__(self) -> None:
        """Roll back if an interrupt came when the block ended: otherwise the row or file stays locked for everybody.

        It can run at any moment, in any thread, and when the interpreter exits.
        """
        if self._joined is not None and self._joined.entered:
            with contextlib.suppress(Exception):
                self.undo()

    def undo(self) -> None:
        """Roll back if this transaction is still open, but no later one on its connection.

        The driver may refuse it outside the connection's own thread. In a forked child, the transaction is the parent's.
        """
        joined = self._joined
        if joined is None or worker.generation != self._process or not joined.entered:
            return
        with contextlib.suppress(StoreError):
            if not joined.session.awaited:
                drive_whole(joined.undo(), joined)
            elif joined.is_last():
                joined.session.cut()
        if joined.session.state is not TransactionState.OPEN:
            joined.forget()

    def _undo_here(self) -> None:
        """Roll back after an interrupt, for the claim's guard.

        A cancelled handler may have left the body to another thread or task, which still uses the connection. It ends the
        transaction itself: effect and record commit, or neither. Rolled back under it, its next statement would commit alone.
        """
        if self._caller == _caller():
            self.undo()


def _caller() -> tuple[int, int]:
    """Return the ids of the thread and the task in which this is called."""
    asyncio: Any = sys.modules.get("asyncio")  # without it there is no task
    loop = None if asyncio is None else asyncio._get_running_loop()  # the documented one raises where there is none
    return threading.get_ident(), 0 if loop is None else id(asyncio.current_task(loop))


def _nothing() -> None:
    pass
