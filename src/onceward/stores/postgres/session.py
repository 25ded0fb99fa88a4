"""The caller's own connection to the ledger's database: an effect on it commits together with its record.

What each driver does of its own is in ``session_*.py``.
"""

import os
from collections.abc import Generator, Sequence
from enum import Enum
from typing import Any, Final

from onceward.core.drivers import Steps
from onceward.core.record import Record
from onceward.errors import StoreError
from onceward.stores.capabilities import Anew, Apart, Ended, TransactionState
from onceward.stores.postgres.connections import sqlstate, state_of
from onceward.stores.postgres.faults import ANEW, LOCKED, Broken, refused, unreachable
from onceward.stores.postgres.inside import KNOWN, NOT_OURS, PLACE, TRY_LOCK, XID, Asked, Inside
from onceward.stores.postgres.queries import InsertQuery, OneRow, Query, RawQuery, Row, reply_of
from onceward.stores.postgres.store import PostgresStore

_DRIVERS: Final = frozenset({"psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django"})


class Turn(Enum):
    """The requests of a session that are no statements of the ledger."""

    BEGIN = "begin"
    FLUSH = "flush"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class PostgresSession:
    """What the sessions of all drivers have in common.

    A driver says how to ``start``, ``fetch``, ``flush``, ``finish`` and ``undo``; they raise the driver's errors, and
    ``undo`` leaves the connection as it was found.
    """

    awaited = False
    exclusive = False

    def __init__(self, store: PostgresStore, connection: Any) -> None:
        self.connection = connection
        self._store = store
        self._inside: Inside
        self._begun = False  # what was open before is none of ours
        self._xid: str | None = None  # of the transaction that made the claim
        self._trouble: StoreError | None = None  # the first, which made the transaction fail
        self._ending = False  # whether the next swap is the completion
        self._last: Query | None = None  # that swap, which is sent with the COMMIT

    # --- by each driver -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""

    @property
    def driver(self) -> Any:
        """The driver's own connection."""
        raise NotImplementedError

    def started_anew(self) -> bool:
        """Tell whether the transaction has seen nothing before us, so that it can begin anew."""
        return True

    def cut(self) -> None:
        """End the transaction by closing the connection."""

    @property
    def seconds(self) -> float:
        """How long one statement may take."""
        return self._store.bare.conduit.timeout

    # --- the session ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> TransactionState:
        """Whether a transaction is open."""
        return state_of(self.driver) if self._begun else TransactionState.ENDED

    def begin(self) -> Steps[None]:
        """Begin a transaction, on the ledger's database."""
        self.check()
        known = KNOWN.get(self._store)
        if known is None:
            yield Apart(OneRow("load", self._store.statements.load, ("?",)))  # makes the tables
            ((schema,),) = yield Apart(RawQuery(PLACE, self._store.names.table))
            known = KNOWN[self._store] = Inside(self._store, schema)
        self._inside = known
        self._begun, self._xid, self._trouble = True, None, None
        self._ending, self._last = False, None
        yield Turn.BEGIN
        if self.driver not in known.same:
            number = int.from_bytes(os.urandom(7), "big")
            yield RawQuery(TRY_LOCK, number)
            if (yield Apart(RawQuery(TRY_LOCK, number)))[0][0]:
                raise ValueError(
                    f"the connection is to another database than the ledger {self._store.url}; effect and record commit "
                    "together only in one"
                )
            known.same.add(self.driver)

    def began_here(self) -> Steps[bool]:
        """Compare the transaction's id. In one that has failed, nobody can: then the aftermath finds out."""
        if self._xid is None or self._trouble is not None:
            return True
        try:
            ((xid,),) = yield RawQuery(XID)
        except StoreError:
            return True
        return bool(xid == self._xid)

    def flush(self) -> Steps[None]:
        """Send what the body has left unsent."""
        yield Turn.FLUSH
        self._ending = True

    def commit(self) -> Steps[Record | None]:
        """Send the completion, if there is one, and commit. Return the completed record."""
        record: Record | None = yield Turn.COMMIT
        return record

    def rollback(self) -> Steps[None]:
        """Roll back, and leave the connection as it was found."""
        if self._begun:
            yield Turn.ROLLBACK

    # --- both drivers' exchange -----------------------------------------------------------------------------------

    def talk(self, request: object) -> Generator[Asked, Sequence[Row], object]:
        """Yield the statements of a request, take their rows, and return its reply."""
        assert isinstance(request, Query)
        if self._trouble is not None:  # the transaction has failed, and this would hide why
            raise self._trouble
        if self._ending and request.action == "swap":
            self._last = request
            return self._inside.expected(request)
        if self._xid is None and isinstance(request, InsertQuery):
            request.choose(takes=False)
            rows = yield self._inside.claim, request.values
            if rows[0][0]:
                return self._answered(request, rows)
            request.choose(takes=self._store.takes)
        return self._answered(request, (yield self._inside.text(request.text), request.values))

    def _answered(self, request: Query, rows: Sequence[Row]) -> object:
        """Return the reply that rows are. Raises Ended if they come from another transaction."""
        if isinstance(request, RawQuery):
            return request.reply(rows)
        xid = rows[0][-2]
        if self._xid is None:
            self._xid = xid
        elif xid != self._xid:
            raise Ended("the transaction that made the claim is over")
        return request.reply([row[:-2] for row in rows if row[1] is not None])

    @property
    def completion(self) -> Asked | None:
        """The statement to send with the COMMIT, and its values."""
        return None if self._last is None else self._inside.completion(self._last, self._xid)

    def took(self, turn: Turn) -> None:
        """Note that a turn was taken."""
        if turn in {Turn.COMMIT, Turn.ROLLBACK}:
            self._begun = False  # the connection can be somebody else's now

    def failed(self, error: Exception) -> StoreError:
        """Return the error for one of the driver, or raise it again if it is somebody else's."""
        if isinstance(error, StoreError):
            raise error
        if not isinstance(error, (OSError, Broken)) and not _DRIVERS & {
            kind.__module__.partition(".")[0] for kind in type(error).__mro__
        }:
            raise error
        state, url = sqlstate(error), self._store.url
        if state == NOT_OURS and self._last is not None:
            return Ended("the transaction that made the claim is over")
        if state in ANEW and self.started_anew():
            trouble: StoreError = Anew(str(refused(state, str(error), url)))
        elif state == LOCKED:
            trouble = refused(state, str(error), url)
        elif state:
            trouble = StoreError(str(refused(state, str(error), url)))
        else:
            trouble = StoreError(str(unreachable(str(error), url)))
        trouble.__cause__ = error
        self._trouble = self._trouble or trouble
        return trouble


class BlockingSession(PostgresSession):
    """For connections that block."""

    def start(self) -> None:
        """Begin."""

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        raise NotImplementedError

    def send(self) -> None:
        """Send what the body has left unsent."""

    def finish(self) -> None:
        """Commit."""

    def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, commit, and return its rows. If it fails, commit nothing."""
        rows = self.fetch(text, values)
        self.finish()
        return rows

    def undo(self) -> None:
        """Roll back, whatever the transaction's state."""

    def exchange(self, request: object) -> object:
        """Run one request on the connection."""
        if isinstance(request, Turn):
            return self._turn(request)
        talk = self.talk(request)
        try:
            asked = next(talk)
            while True:
                try:
                    rows = self.fetch(*asked)
                except Exception as error:
                    raise self.failed(error) from error
                asked = talk.send(rows)
        except StopIteration as end:
            return end.value

    def _turn(self, turn: Turn) -> Record | None:
        acts = {Turn.BEGIN: self.start, Turn.FLUSH: self.send, Turn.COMMIT: self.finish, Turn.ROLLBACK: self.undo}
        last = self.completion if turn is Turn.COMMIT else None
        rows: Sequence[Row] = ()
        try:
            if last is not None:
                rows = self.complete(*last)
            else:
                acts[turn]()
        except Exception as error:
            if turn is Turn.FLUSH:  # which is the body's
                raise
            if turn is Turn.ROLLBACK:
                self.cut()  # then the server rolls back
            raise self.failed(error) from error
        self.took(turn)
        return reply_of(rows[0][:-1]).record if rows else None

    async def exchange_async(self, request: object) -> object:
        """Refuse: it blocks."""
        raise NotImplementedError


class AwaitedSession(PostgresSession):
    """For connections of coroutines."""

    awaited = True

    async def start(self) -> None:
        """Begin."""

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        raise NotImplementedError

    async def send(self) -> None:
        """Send what the body has left unsent."""

    async def finish(self) -> None:
        """Commit."""

    async def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, commit, and return its rows. If it fails, commit nothing."""
        rows = await self.fetch(text, values)
        await self.finish()
        return rows

    async def undo(self) -> None:
        """Roll back, whatever the transaction's state."""

    def exchange(self, request: object) -> object:
        """Refuse: it is awaited."""
        raise NotImplementedError

    async def exchange_async(self, request: object) -> object:
        """Run one request on the connection."""
        if isinstance(request, Turn):
            return await self._turn(request)
        talk = self.talk(request)
        try:
            asked = next(talk)
            while True:
                try:
                    rows = await self.fetch(*asked)
                except Exception as error:
                    raise self.failed(error) from error
                asked = talk.send(rows)
        except StopIteration as end:
            return end.value

    async def _turn(self, turn: Turn) -> Record | None:
        acts = {Turn.BEGIN: self.start, Turn.FLUSH: self.send, Turn.COMMIT: self.finish, Turn.ROLLBACK: self.undo}
        last = self.completion if turn is Turn.COMMIT else None
        rows: Sequence[Row] = ()
        try:
            if last is not None:
                rows = await self.complete(*last)
            else:
                await acts[turn]()
        except Exception as error:
            if turn is Turn.FLUSH:  # which is the body's
                raise
            if turn is Turn.ROLLBACK:
                self.cut()  # then the server rolls back
            raise self.failed(error) from error
        self.took(turn)
        return reply_of(rows[0][:-1]).record if rows else None
