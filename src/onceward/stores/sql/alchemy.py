"""Transactions on SQLAlchemy's connections and sessions, for any database.

The asynchronous ones are driven through ``run_sync``, so that all of them share one logic. What is the database's or the driver's own
stands in its :class:`Underneath`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransactionOrigin

from onceward.errors import StoreError
from onceward.stores.capabilities import TransactionState
from onceward.stores.sql.drivers import CallersDriver, DriverFailed

_HOOKED = "the transaction failed or ended before its COMMIT, in a hook of SQLAlchemy"
_IN_ONE = "is in a transaction already; commit it first, because onceward must end the one it begins"


class Underneath(ABC):
    """What is below SQLAlchemy: the driver's connection, blocking, or awaited with ``await_only``.

    Attributes:
        state_of: returns the state of a driver's connection. One that was closed is lost, which SQLAlchemy may not know.
    """

    state_of: Callable[[Any], TransactionState]

    def __init__(self, connection: Connection, seconds: float, connected: Callable[[], Connection]) -> None:
        self.connection = connection
        self.raw: Any = connection.connection.driver_connection  # which goes back to the pool when the transaction ends
        self.seconds = seconds
        self.connected = connected

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError if the engine is of another database, or commits each statement."""

    @abstractmethod
    def check_begun(self, *, had_begun: bool) -> None:
        """Raise ValueError if the transaction cannot be ours. ``had_begun``: SQLAlchemy began it before us."""

    def state(self) -> TransactionState:
        """Return the state of the driver's connection."""
        return self.state_of(self.raw)

    @abstractmethod
    def fetch(self, *asked: Any) -> Sequence[Any]:
        """Run one request's statements, and return their rows."""

    def has_failed(self) -> bool:
        """Return whether the server would answer a COMMIT with a ROLLBACK, which no driver raises."""
        return False

    @abstractmethod
    def cut(self) -> None:
        """Close the driver's connection."""


class AlchemyDriver(CallersDriver):
    """What a Connection and a Session have in common.

    Attributes:
        root: SQLAlchemy's transaction, which is ours.
        under: what is below it in that transaction, once that has begun.
    """

    root: Any = None
    under: Underneath
    _committing = False

    def __init__(self, kind: type[Underneath], connection: Any, seconds: float, outer: Any = None) -> None:
        super().__init__(connection, seconds)
        self._kind, self._outer, self.awaited = kind, outer, outer is not None

    @abstractmethod
    def connected(self) -> Connection:
        """Return the connection in the transaction."""

    @property
    def raw(self) -> Any:
        """The driver's connection; None before the transaction has begun."""
        return None if self.root is None else self.under.raw

    def known_state(self) -> TransactionState:
        """Return the state. SQLAlchemy may have ended the transaction, or not know that it has ended."""
        if self.root is None:
            return TransactionState.ENDED
        if self.under.connection.invalidated or self.has_failed():
            return TransactionState.LOST
        return self.under.state() if self.holds() else TransactionState.ENDED

    def has_failed(self) -> bool:
        """Return whether SQLAlchemy itself has rolled back, and waits for us to do so."""
        return False

    def holds(self) -> bool:
        """Return whether our transaction has not been ended by SQLAlchemy's verbs."""
        return self.root is not None and self.connection.get_transaction() is self.root

    def commits_alone(self) -> bool:
        """Tell that it does not: SQLAlchemy begins a transaction, and :meth:`take` has refused the others."""
        return False

    def enter(self) -> None:
        """Use the caller's transaction; SQLAlchemy begins one by itself."""
        self.take(self.connected())

    def take(self, connection: Connection) -> None:
        """Keep the connection of a transaction that has begun."""
        under = self._kind(connection, self.seconds, self.connected)
        under.check()
        self.root, self.under = self.connection.get_transaction(), under

    def fetch(self, *asked: Any) -> Sequence[Any]:
        return self.under.fetch(*asked)

    def finish(self) -> None:
        """Commit. If a hook of SQLAlchemy has sent something since the completion, the ledger must tell what was committed."""
        connection, sent = self.under.connection, list[bool]()
        hooks = (("commit", self._check_commit), ("before_cursor_execute", lambda *_: sent.append(True)))
        for name, hook in hooks:
            event.listen(connection, name, hook)
        self._committing = True
        try:
            self.connection.commit()
        finally:
            self.root, self._committing = None, False  # the driver's connection can be somebody else's now
            for name, hook in hooks:
                event.remove(connection, name, hook)
        if sent:  # which can have failed: no driver raises if the server then answers COMMIT with a ROLLBACK
            raise StoreError(_HOOKED)

    def _check_commit(self, _: Connection) -> None:
        if self.under.has_failed() or self.under.state() is TransactionState.ENDED:
            raise StoreError(_HOOKED)

    def undo(self) -> None:
        under = getattr(self, "under", None)  # none before the transaction has begun
        if under is not None and under.state() is TransactionState.LOST and self.holds():
            under.connection.invalidate()
        self.root = None
        self.connection.rollback()

    def cut(self) -> None:
        if self._committing or self.holds():
            self.under.cut()

    async def exchange_async(self, act: object) -> object:
        """Run one act, where SQLAlchemy lets blocking code await."""
        try:
            return await self._outer.run_sync(lambda _: self.exchange(act))
        except DriverFailed:
            raise
        except Exception as error:  # of run_sync itself
            raise DriverFailed(error) from error


class OfConnection(AlchemyDriver):
    """A ``sqlalchemy.Connection``."""

    connection: Connection

    def check(self) -> None:
        if self.connection.in_transaction():
            raise ValueError(f"the connection {_IN_ONE}. A SELECT begins one, too")

    def connected(self) -> Connection:
        return self.connection

    def enter(self) -> None:
        """Use the caller's transaction; as with any statement, SQLAlchemy begins one if there is none."""
        if not self.connection.in_transaction():
            self.connection.begin()
        self.take(self.connection)

    def start(self) -> None:
        self.connection.begin()
        self.take(self.connection)
        self.under.check_begun(had_begun=False)


class OfSession(AlchemyDriver):
    """A ``sqlalchemy.orm.Session``. It may have begun by itself."""

    connection: Session
    keeps = True
    _had_begun = False

    def check(self) -> None:
        session = self.connection
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
                "the session is bound to a connection in a transaction, so its commit would commit nothing: bind it to an engine"
            )
        self._had_begun = transaction is not None

    def has_failed(self) -> bool:
        """Return whether a flush has failed."""
        return not self.connection.is_active

    def started_anew(self) -> bool:
        """Return whether nothing was read before us."""
        return not self._had_begun

    def connected(self) -> Connection:
        session = self.connection
        engines = engines_of(session)
        return session.connection(bind_arguments={"bind": engines.pop()} if engines and session.bind is None else {})

    def start(self) -> None:
        if not self.connection.in_transaction():
            self.connection.begin()
        self.take(self.connected())
        self.under.check_begun(had_begun=self._had_begun)

    def send(self) -> None:
        """Flush: a statement that fails is the body's failure."""
        self.connection.flush()
        transaction = self.connection.get_transaction()
        used = getattr(transaction, "_connections", {}).values()  # no public name tells
        if len({id(connection) for connection, *_ in used}) > 1:
            raise StoreError("the session has used a second database in this transaction, which cannot commit with it")


def driver_of(kind: type[Underneath], connection: Any, seconds: float) -> AlchemyDriver:
    """Return the driver of a Connection, AsyncConnection, Session or AsyncSession."""
    inner = getattr(connection, "sync_session", getattr(connection, "sync_connection", connection))
    is_session = isinstance(connection, Session) or hasattr(connection, "sync_session")
    outer = None if inner is connection else connection
    return (OfSession if is_session else OfConnection)(kind, inner, seconds, outer)


def engines_of(session: Session) -> set[Any]:
    """Return the engines that a session is bound to."""
    binds = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # before SQLAlchemy 2.1
    return {getattr(bind, "engine", bind) for bind in (session.bind, *binds.values()) if bind is not None}
