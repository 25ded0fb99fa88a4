"""An effect in the ledger's own database that commits together with its record: both, or neither.

The methods of ``with`` and ``async with`` are here, and the body runs between them. The logic is in ``joined.py``.
"""

import contextlib
import sys
import threading
from abc import abstractmethod
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from onceward.claim.claim import Claim, Transaction
from onceward.claim.ends import EndingClaim
from onceward.claim.joined import Joined
from onceward.claim.lease import CURRENT, Lease, leave_current
from onceward.claim.running import enter_span, leave_span, running_loop
from onceward.core import worker
from onceward.core.whole import drive_whole, drive_whole_async, shielded
from onceward.errors import Parked, StoreError
from onceward.stores.capabilities import TRANSACTION, Session, TransactionState
from onceward.stores.contract import Store

C = TypeVar("C")


class RecordTransaction(Transaction[C]):
    """A transaction that a record joins."""

    _joined: Joined | None = None
    _abandoned = False  # nobody waits for its beginning any more
    _was_left = False  # whether nothing ran under its claim before: no guard or block has it

    def __init__(self, store: Store, key: str, connection: C) -> None:
        self._join = TRANSACTION.require(store)
        self.connection = connection
        self._store = store
        self._key = key
        self._outer: Lease | None = None
        self._process = worker.generation

    @property
    def claim(self) -> Claim:
        """See :class:`Transaction`."""
        return self._held

    @property
    def _held(self) -> EndingClaim:
        joined = self._inside
        if joined.held is None:
            raise RuntimeError("this transaction was refused")
        return joined.held

    @property
    def _inside(self) -> Joined:
        if self._joined is None:
            raise RuntimeError("this transaction was not entered")
        return self._joined

    def __enter__(self) -> Self:
        joined = self._prepared(awaited=False)
        try:
            drive_whole(joined.enter(), joined)
            self._enter_context()
            self._enter_span()
        except BaseException as error:
            self.undo()
            self._clean_up(joined, error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_context()
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
            await shielded(partial(self._enter_async, joined), self._abandon)
            self._enter_context()
            self._enter_span()
        except BaseException as error:
            is_open = joined.session.state is TransactionState.OPEN
            if is_open and not isinstance(error, GeneratorExit):  # cancelled when it had just begun
                await shielded(partial(drive_whole_async, joined.undo(), joined), joined.session.cut)
            self._clean_up(joined, error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_context()
        self._leave_span(error)
        joined = self._inside
        if self._is_parents(error):
            return
        if isinstance(error, GeneratorExit):  # a closed coroutine must not await
            self.undo()
            return
        try:
            await shielded(partial(drive_whole_async, joined.leave(error, self.result), joined), joined.session.cut)
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

    @abstractmethod
    def _join_record(self, session: Session) -> Joined: ...

    def _clean_up(self, joined: Joined, error: BaseException) -> None:
        """Clean up and tell observers: the body does not run."""
        self._leave_context()
        if not joined.entered or joined.session.state is not TransactionState.OPEN:
            joined.forget()
        if isinstance(error, Parked) or joined.stands:
            joined.tell()

    def _enter_context(self) -> None:
        self._was_left, self._held.left = self._held.left, False
        CURRENT.set(self._held)

    def _leave_context(self) -> None:
        leave_current(self._inside.held, self._outer)
        if self._was_left:
            self._held.left = True

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


class ClaimTransaction(RecordTransaction[C]):
    """A transaction of the effect and completion of a held claim."""

    def __init__(self, claim: EndingClaim, connection: C) -> None:
        super().__init__(claim.store, claim.record.key, connection)
        self._before = claim

    def _prepared(self, *, awaited: bool) -> Joined:
        self._before.check_own()
        self._before.check_not_stopped()
        self._before.check_usable()  # a refused transaction must not free what an outer one holds
        self._caller = _caller()
        return super()._prepared(awaited=awaited)

    def _join_record(self, session: Session) -> Joined:
        return Joined(session, id(self.connection), self._store, self._key, self._before, self._undo_here)

    def _undo_here(self) -> None:
        """Roll back after an interrupt, for the claim's guard.

        A cancelled handler may have left the body to another thread or task, which still uses the connection. It ends the
        transaction itself: effect and record commit, or neither. Rolled back under it, its next statement would commit alone.
        """
        if self._caller == _caller():
            self.undo()


def _caller() -> tuple[int, int]:
    """Return the ids of the thread and the task in which this is called."""
    loop = running_loop()
    return threading.get_ident(), 0 if loop is None else id(sys.modules["asyncio"].current_task(loop))
