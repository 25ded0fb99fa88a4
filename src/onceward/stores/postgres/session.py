"""The caller's own connection to the ledger's database: an effect on it commits together with its record.

The transaction's id tells whether it is still the one that made the claim. The completion is sent right before the COMMIT.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from psycopg import Connection
from psycopg.pq import TransactionStatus

from onceward.core.drivers import Steps
from onceward.core.record import Reply
from onceward.errors import StoreError
from onceward.stores.capabilities import AnotherDatabase, Apart, Ended, TransactionState
from onceward.stores.postgres.cursors import FAULTS
from onceward.stores.postgres.inside import PLACE, TRY_LOCK, XID, Inside
from onceward.stores.postgres.queries import OneRow, Query, RawQuery, WriteQuery
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.exchange import Row
from onceward.stores.sql.session import Acts, SqlSession, driver_of

_PATIENCE: Final = "1000"  # milliseconds to wait for somebody's open transaction on a key
_LIBRARIES: Final = frozenset({"psycopg", "psycopg2", "asyncpg"})
_KINDS: Final = {
    "psycopg.Connection": "_plain:PsycopgDriver",
    "psycopg.AsyncConnection": "_plain:AsyncPsycopgDriver",
    "psycopg2.connection": "_plain:Psycopg2Driver",
    "asyncpg.Connection": "_plain:AsyncpgDriver",
    "asyncpg.PoolConnectionProxy": "_plain:AsyncpgDriver",
}
_CHOICES: Final = (
    "a connection of psycopg, psycopg2 or asyncpg, a Connection or Session of SQLAlchemy (blocking or asynchronous), or "
    "Django's connections[alias]"
)
_STATES: Final = {0: TransactionState.ENDED, 2: TransactionState.OPEN, 3: TransactionState.OPEN}  # libpq's
_CANCEL: Final = 2.0  # seconds to ask the server to cancel a statement


def state_of(driver: Any) -> TransactionState:
    """Return the state of a connection of psycopg, psycopg2 or asyncpg. One that an interrupt left in a statement is closed."""
    if driver is None:
        return TransactionState.LOST
    if hasattr(driver, "is_in_transaction"):
        if driver.is_closed():
            return TransactionState.LOST
        return TransactionState.OPEN if driver.is_in_transaction() else TransactionState.ENDED
    status = int(driver.info.transaction_status)
    if status == TransactionStatus.ACTIVE and isinstance(driver, Connection) and not driver.lock.locked():
        abort(driver)
    return _STATES.get(status, TransactionState.LOST)


def check_encoding(driver: Any) -> None:
    """Raise ValueError if a connection of psycopg, psycopg2 or asyncpg cannot carry every text: a result would come back altered."""
    if hasattr(driver, "get_settings"):  # asyncpg
        encoding = driver.get_settings().client_encoding
    else:
        encoding = driver.info.parameter_status("client_encoding")
    if encoding is not None and encoding.strip("'").upper() not in {
        "UTF8",
        "UTF-8",
    }:  # PgBouncer tells what asyncpg wrote
        raise ValueError(
            f"the connection's client_encoding is {encoding}, and a ledger needs UTF8: SET client_encoding TO UTF8"
        )


def abort(driver: Connection[Any]) -> None:
    """Cancel a statement whose answer nobody will read, and close the connection: else the server keeps the key locked."""
    with contextlib.suppress(Exception):
        driver.cancel_safe(timeout=_CANCEL)
    driver.pgconn.finish()


def sqlstate(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error, within those that other libraries wrap around it; "" if it has none."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state:
            return str(state)
        error = getattr(error, "orig", None) or error.__cause__
    return ""


class PostgresSession(SqlSession):
    """A connection of the caller to PostgreSQL."""

    faults = FAULTS
    libraries = _LIBRARIES
    state_of = staticmethod(state_of)
    code_of = staticmethod(sqlstate)

    _xid: str | None = None  # of the transaction that made the claim

    def learn(self) -> Steps[Inside]:
        """Ask which schema the ledger is in."""
        yield Apart(OneRow("load", self.store.statements.load, ("?",)))  # makes the tables
        ((schema,),) = yield Apart(RawQuery(PLACE, self.store.names.table))
        return Inside(self.store, schema)

    def _check_place(self) -> Steps[None]:
        yield from super()._check_place()
        check_encoding(self.driver.raw)

    def check_place(self) -> Steps[None]:
        """Check that the connection is to the ledger's database: two sessions cannot have one lock of it."""
        number = int.from_bytes(os.urandom(7), "big")
        yield RawQuery(TRY_LOCK, number)
        if (yield Apart(RawQuery(TRY_LOCK, number)))[0][0]:
            yield RawQuery(XID)  # fails if the session, and its lock with it, is lost
            raise AnotherDatabase(
                f"the connection is to another database than the ledger {self.store.url}; effect and record commit "
                "together only in one"
            )

    def begin(self) -> Steps[None]:
        self._xid = None
        return super().begin()

    def began_here(self) -> Steps[bool]:
        """Compare the transaction's id. In one that has failed, nobody can: then the aftermath finds out."""
        if self._xid is None or self.trouble is not None:
            return True
        try:
            ((xid,),) = yield RawQuery(XID)
        except StoreError:
            return True
        return bool(xid == self._xid)

    def talk(self, request: object) -> Acts:
        assert isinstance(request, Query)
        if not isinstance(request, RawQuery):
            request.values = (_PATIENCE, *request.values[1:])
        if isinstance(request, WriteQuery):
            if self._xid is not None:  # the body may have changed it
                check_encoding(self.driver.raw)
            if request is self.last:
                rows = yield "fetch", self.statements.completing(request)
                return self._reply_to_write(request, rows[0]) if rows else Reply(False, None, 0.0)
            if self._xid is None and request.kind == "insert":
                rows = yield "fetch", self.statements.claiming(request)
                if rows:
                    return self._reply_to_write(request, rows[0])
        return self._reply_of(request, (yield "fetch", (self.statements.text(request.text), request.values)))

    def _reply_of(self, request: Query, rows: Sequence[Row]) -> object:
        """Return the reply that rows are."""
        if isinstance(request, RawQuery):
            return request.reply(rows)
        self._check(rows[0][-2])
        return request.reply([row[:-2] for row in rows if row[1] is not None])

    def _reply_to_write(self, request: WriteQuery, row: Row) -> Reply:
        """Return the reply to a write that was made by a short statement."""
        now, fence, at, xid, _ = row
        self._check(xid)
        record = request.write.at(at)
        return Reply(True, record if record.fence == fence else record._replace(fence=fence), now)

    def _check(self, xid: str | None) -> None:
        """Raise Ended if rows come from another transaction than the first ones."""
        if self._xid is None:
            self._xid = xid
        elif xid != self._xid:
            raise Ended("the transaction that made the claim is over")


def join(store: PostgresStore, connection: object) -> PostgresSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is none that we know.
        ValueError: it cannot hold a transaction of ours.
    """
    return PostgresSession(store, driver_of(__name__, _KINDS, connection, store.conduit.timeout, _CHOICES))
