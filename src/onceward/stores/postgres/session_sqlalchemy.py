"""Transactions on SQLAlchemy's connections and sessions, with the drivers psycopg, psycopg2 and asyncpg.

The asynchronous ones are driven through ``run_sync``, so that all of them share one logic.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection as AsyncPsycopgConnection
from psycopg import Connection as PsycopgConnection
from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransactionOrigin
from sqlalchemy.util import await_only

from onceward.errors import StoreError
from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres import together
from onceward.stores.postgres.connections import state_of
from onceward.stores.postgres.inside import named
from onceward.stores.postgres.queries import Row
from onceward.stores.postgres.session import AwaitedSession, BlockingSession
from onceward.stores.postgres.store import PostgresStore

_IN_ONE = "is in a transaction already; commit it first, for this one must be ours to end"
_DRIVERS = ("psycopg", "psycopg2", "asyncpg")


class SqlalchemySession(BlockingSession):
    """What a Connection and a Session have in common.

    Attributes:
        root: SQLAlchemy's transaction, which is ours.
        within: the connection in it.
        raw: the driver's connection, which goes back to the pool when the transaction ends.
    """

    root: Any = None
    within: Connection
    raw: Any = None
    _committing = False

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        return self.raw

    @property
    def state(self) -> TransactionState:
        """Whether a transaction is open."""
        if self.root is None:
            return TransactionState.ENDED
        if self.within.invalidated or self.has_failed():
            return TransactionState.LOST
        return state_of(self.raw) if self.holds() else TransactionState.ENDED

    def has_failed(self) -> bool:
        """Tell whether SQLAlchemy itself has rolled back, and waits for us to do so."""
        return False

    def holds(self) -> bool:
        """Tell whether our transaction has not been ended by SQLAlchemy's verbs."""
        return self.root is not None and self.connection.get_transaction() is self.root

    def connected(self) -> Connection:
        """Return the connection in the transaction."""
        raise NotImplementedError

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        if isinstance(self.raw, PsycopgConnection):
            return together.fetch(self.raw, text, values, self.seconds)
        if isinstance(self.raw, AsyncPsycopgConnection):
            return await_only(together.fetch_async(self.raw, text, values, self.seconds))
        connection = self.connected()
        if connection.dialect.paramstyle == "numeric_dollar":
            return list(connection.exec_driver_sql(text, tuple(values)))
        given = {f"p{at}": value for at, value in enumerate(values, 1)}
        return list(connection.exec_driver_sql(named(text), given))

    def take(self, connection: Connection) -> None:
        """Keep the connection of a transaction that has begun."""
        if connection.dialect.name != "postgresql" or connection.dialect.driver not in _DRIVERS:
            raise ValueError(f"{connection.engine.url!r}: give an engine of postgresql with {', '.join(_DRIVERS)}")
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise ValueError("the connection commits each statement by itself: leave out isolation_level='AUTOCOMMIT'")
        self.root, self.within = self.connection.get_transaction(), connection
        self.raw = connection.connection.driver_connection

    def finish(self) -> None:
        """Commit."""
        self._committing = True
        try:
            self.connection.commit()
        finally:
            self.root, self._committing = None, False  # the driver's connection can be somebody else's now

    def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, and commit with it if the driver can."""
        if not isinstance(self.raw, (PsycopgConnection, AsyncPsycopgConnection)):
            return super().complete(text, values)
        return together.complete_within(self.raw, text, values, self.finish, self.seconds)

    def undo(self) -> None:
        """Roll back."""
        if isinstance(self.raw, (PsycopgConnection, AsyncPsycopgConnection)):
            together.forget(self.raw)
            if self.holds() and self.raw.closed:
                self.within.invalidate()  # closed in the middle of a statement, which SQLAlchemy does not know
        self.root = None
        self.connection.rollback()

    def cut(self) -> None:
        """Close the driver's connection."""
        if not (self._committing or self.holds()):
            return
        if hasattr(self.raw, "pgconn"):
            from onceward.stores.postgres.session_psycopg import cut  # only with that driver

            cut(self.raw)
        elif hasattr(self.raw, "terminate"):
            self.raw.terminate()
        else:
            self.raw.close()


class OfConnection(SqlalchemySession):
    """A ``sqlalchemy.Connection``."""

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        if self.connection.in_transaction():
            raise ValueError(f"the connection {_IN_ONE}. A SELECT begins one, too")

    def connected(self) -> Connection:
        """Return the connection."""
        connection: Connection = self.connection
        return connection

    def start(self) -> None:
        """Begin."""
        self.connection.begin()
        self.take(self.connection)


class OfSession(SqlalchemySession):
    """A ``sqlalchemy.orm.Session``. It may have begun by itself, if each statement sees what is committed by then."""

    _had_begun = False

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        session: Session = self.connection
        transaction = session.get_transaction()
        if session.twophase:
            raise ValueError("the session commits in two phases: give one without twophase")
        if transaction is not None and (
            session.in_nested_transaction() or transaction.origin is not SessionTransactionOrigin.AUTOBEGIN
        ):
            raise ValueError(f"the session {_IN_ONE}. Leave out session.begin()")
        if not session.is_active:
            raise ValueError("the session waits for a rollback() after an error")
        engines = engines_of(session)
        if len(engines) > 1:
            raise ValueError(
                f"the session is bound to {len(engines)} databases, which cannot commit together: give one that is bound to "
                "the ledger's alone"
            )
        if isinstance(session.bind, Connection) and (transaction is not None or session.bind.in_transaction()):
            raise ValueError(
                "the session is bound to a connection in a transaction, so its commit would not be one: bind it to an engine"
            )
        self._had_begun = transaction is not None

    def has_failed(self) -> bool:
        """Tell whether a flush has failed."""
        session: Session = self.connection
        return not session.is_active

    def started_anew(self) -> bool:
        """Tell whether nothing was read before us."""
        return not self._had_begun

    def connected(self) -> Connection:
        """Return the session's connection."""
        session: Session = self.connection
        engines = engines_of(session)
        return session.connection(bind_arguments={"bind": engines.pop()} if engines and session.bind is None else {})

    def start(self) -> None:
        """Begin, or take what has begun by itself."""
        session: Session = self.connection
        if not session.in_transaction():
            session.begin()
        connection = self.connected()
        self.take(connection)
        level = connection.get_execution_options().get("isolation_level") or connection.default_isolation_level
        if self._had_begun and state_of(self.raw) is TransactionState.OPEN and level != "READ COMMITTED":
            raise ValueError(
                f"the session has read already, and at {level} it would not see who else handles the key: enter the transaction "
                "before its first statement"
            )

    def send(self) -> None:
        """Flush: a statement that fails is the body's failure."""
        session: Session = self.connection
        session.flush()
        transaction = session.get_transaction()
        used = getattr(transaction, "_connections", {}).values()  # no public name tells
        if len({id(connection) for connection, *_ in used}) > 1:
            raise StoreError("the session has used a second database in this transaction, which cannot commit with it")


T = TypeVar("T")


class Awaited(AwaitedSession):
    """An AsyncConnection or AsyncSession.

    Args:
        store: the ledger.
        connection: the asynchronous one.
        inner: the session of its synchronous one.
    """

    def __init__(self, store: PostgresStore, connection: Any, inner: SqlalchemySession) -> None:
        super().__init__(store, connection)
        self._inner = inner

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        return self._inner.driver

    @property
    def state(self) -> TransactionState:
        """Whether a transaction is open."""
        return self._inner.state

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        self._inner.check()

    def started_anew(self) -> bool:
        """Tell whether nothing was read before us."""
        return self._inner.started_anew()

    async def start(self) -> None:
        """Begin."""
        await self.connection.run_sync(lambda _: self._inner.start())

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        rows: Sequence[Row] = await self.connection.run_sync(lambda _: self._inner.fetch(text, values))
        return rows

    async def send(self) -> None:
        """Flush."""
        await self.connection.run_sync(lambda _: self._inner.send())

    async def finish(self) -> None:
        """Commit."""
        await self.connection.run_sync(lambda _: self._inner.finish())

    async def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, and commit with it if the driver can."""
        rows: Sequence[Row] = await self.connection.run_sync(lambda _: self._inner.complete(text, values))
        return rows

    async def undo(self) -> None:
        """Roll back."""
        await self.connection.run_sync(lambda _: self._inner.undo())

    def cut(self) -> None:
        """Close the driver's connection."""
        self._inner.cut()


def of_connection(store: PostgresStore, connection: Any) -> OfConnection:
    """Return the session of a Connection."""
    return OfConnection(store, connection)


def of_session(store: PostgresStore, session: Any) -> OfSession:
    """Return the session of a Session."""
    return OfSession(store, session)


def of_async_connection(store: PostgresStore, connection: Any) -> Awaited:
    """Return the session of an AsyncConnection."""
    return Awaited(store, connection, OfConnection(store, connection.sync_connection))


def of_async_session(store: PostgresStore, session: Any) -> Awaited:
    """Return the session of an AsyncSession."""
    return Awaited(store, session, OfSession(store, session.sync_session))


def engines_of(session: Session) -> set[Any]:
    """Return the engines that a session is bound to."""
    binds = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # before SQLAlchemy 2.1
    return {getattr(bind, "engine", bind) for bind in (session.bind, *binds.values()) if bind is not None}
