"""An effect in the ledger's own database that commits together with its record: both, or neither.

The methods of ``with`` and ``async with`` are here, and the body runs between them. The logic is in ``joined.py``.
"""

import contextlib
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from onceward.claim.called import enter_span, leave_span
from onceward.claim.claim import Claim, Transaction
from onceward.claim.ends import EndingClaim
from onceward.claim.joined import Joined
from onceward.claim.lease import CURRENT, Lease, leave_current
from onceward.core import worker
from onceward.core.whole import drive_whole, drive_whole_async, shielded
from onceward.errors import Parked, StoreError
from onceward.stores.capabilities import TRANSACTION, SessionTransport, TransactionState
from onceward.stores.contract import Store

C = TypeVar("C")


class RecordTransaction(Joined, Transaction[C]):
    """A transaction that a record joins. ``given`` is the claim, if it was made before."""

    connection: C
    _abandoned = False  # nobody waits for its beginning any more
    _was_left = False  # whether nothing ran under its claim before: no guard or block has it
    _outer: Lease | None = None

    def __init__(self, store: Store, key: str, connection: C, given: EndingClaim | None = None) -> None:
        super().__init__(store, key)
        self._join = TRANSACTION.require(store)
        self.connection = connection
        self.held = self._given = given

    @property
    def claim(self) -> Claim:
        """See :class:`Transaction`."""
        return self._held

    def __enter__(self) -> Self:
        self._prepare(awaited=False)
        try:
            drive_whole(self._entering(), self)
            self._enter_context()
            self._enter_span()
        except BaseException as error:
            self.undo()
            self._clean_up(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_context()
        self._leave_span(error)
        if self._is_parents(error):
            return
        try:
            drive_whole(self._leaving(error, self.result), self)
            self._warn()
        finally:
            if error is None or isinstance(error, Exception):
                self._tell()

    async def __aenter__(self) -> Self:
        self._prepare(awaited=True)
        try:
            await shielded(self._enter_async, self._abandon)
            self._enter_context()
            self._enter_span()
        except BaseException as error:
            is_open = self.session.state is TransactionState.OPEN
            if is_open and not isinstance(error, GeneratorExit):  # cancelled when it had just begun
                await shielded(partial(drive_whole_async, self._undoing(), self), self.session.cut)
            self._clean_up(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_context()
        self._leave_span(error)
        if self._is_parents(error):
            return
        if isinstance(error, GeneratorExit):  # a closed coroutine must not await
            self.undo()
            return
        try:
            await shielded(partial(drive_whole_async, self._leaving(error, self.result), self), self.session.cut)
            self._warn()
        finally:
            if error is None or isinstance(error, Exception):
                self._tell()

    async def _enter_async(self) -> None:
        await drive_whole_async(self._entering(), self)
        if self._abandoned:
            self.undo()

    def _abandon(self) -> None:
        self._abandoned = True
        self.session.cut()

    def _prepare(self, *, awaited: bool) -> None:
        if self.entered:
            raise RuntimeError(f"{self._key}: this transaction is open: make another one for another block")
        session = self._join(self.connection)
        if session.awaited is not awaited:
            form = "`async with`, because you await it" if session.awaited else "`with`, not `async with`"
            raise TypeError(f"{self._key}: enter the transaction of this connection with {form}")
        self.session, self._both = session, SessionTransport(session, self._store)
        self.held, self.committed, self.others = self._given, False, []
        self._outer = CURRENT.get()
        self._process = worker.generation

    def _clean_up(self, error: BaseException) -> None:
        """Clean up and tell observers: the body does not run."""
        self._leave_context()
        if not self.entered or self.session.state is not TransactionState.OPEN:
            self._forget()
        # No claim that was made and rolled back is told of.
        if isinstance(error, Parked) or self.held is self._given:
            self._tell()

    def _enter_context(self) -> None:
        held = self._held
        self._was_left, held.left = held.left, False
        CURRENT.set(held)

    def _leave_context(self) -> None:
        leave_current(self.held, self._outer)
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
        self._forget()
        if error is None:
            self._held.check_own()
        return True

    def __del__(self) -> None:
        """Roll back if an interrupt came when the block ended: otherwise the row or file stays locked for everybody.

        It can run at any moment, in any thread, and when the interpreter exits.
        """
        if self.entered:
            with contextlib.suppress(Exception):
                self.undo()

    def undo(self) -> None:
        """Roll back if this transaction is still open, but no later one on its connection.

        The driver may refuse it outside the connection's own thread. In a forked child, the transaction is the parent's.
        """
        if not self.entered or worker.generation != self._process:
            return
        with contextlib.suppress(StoreError):
            if not self.session.awaited:
                drive_whole(self._undoing(), self)
            elif self._is_last():
                self.session.cut()
        if self.session.state is not TransactionState.OPEN:
            self._forget()
