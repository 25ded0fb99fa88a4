"""The caller's own connection to the ledger's server: an effect on it commits together with its record.

A savepoint marks the transaction: it is gone when somebody has committed it or rolled it back, as DDL and a deadlock do, too.
BEGIN and the savepoint are sent with our first statement.
All reads lock: the snapshot of the transaction may be older than the row.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import AnotherDatabase, Apart, Ended, TransactionState
from onceward.stores.mysql.lane import DRIVERS, FAULTS, NO_SAVEPOINT, code_of, cut, fetch, fetch_async, state_of
from onceward.stores.mysql.queries import KeyQuery, MysqlQuery, RowsQuery
from onceward.stores.mysql.statements import MysqlStatements, block
from onceward.stores.mysql.store import MysqlStore
from onceward.stores.sql.drivers import AS_A_SELECT, CallersDriver, DriverFailed, check_idle
from onceward.stores.sql.exchange import Row
from onceward.stores.sql.session import Acts, SqlSession, driver_of

_PATIENCE: Final = 1  # seconds to wait for somebody's open transaction on a key
# MySQL has no such wait for one statement. The caller's own statements must wait as long as before.
_HURRY: Final = "@onceward_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1"
_REST: Final = "SET SESSION innodb_lock_wait_timeout = @onceward_wait"
# Fails if the body, or an earlier user of the connection, has changed what the ledger's statements depend on.
_UNFIT: Final = (
    "ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) > 60 OR @@character_set_results <> 'utf8mb4' OR "
    "@@SESSION.sql_mode LIKE '%SIMULTANEOUS%'"
)
_FITS_MARIADB: Final = f"IF {_UNFIT} THEN SIGNAL SQLSTATE '21000' SET MYSQL_ERRNO = 1242; END IF"
_FITS_MYSQL: Final = f"SET @onceward_fits = IF({_UNFIT}, (SELECT 1 UNION SELECT 2), NULL), {_HURRY}"
_SEEN: Final = "DO 0"  # its answer tells whether a transaction is open
_FITS: Final = (
    "SELECT @@character_set_client, @@character_set_results, @@SESSION.sql_mode, "
    "ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) > 60, GET_LOCK('{}', 0)"
)
_KINDS: Final = {"pymysql.Connection": ":PymysqlDriver", "asyncmy.Connection": ":AsyncmyDriver"}
_CHOICES: Final = (
    "a connection of PyMySQL or asyncmy, a Connection or Session of SQLAlchemy (also its asynchronous ones), or one of "
    "Django's connections"
)


class MysqlSession(SqlSession):
    """A connection of the caller to MySQL or MariaDB."""

    faults = FAULTS
    libraries = DRIVERS
    state_of = staticmethod(state_of)
    code_of = staticmethod(code_of)

    _mark: str | None = None  # the name of the savepoint, once it is there
    _next_mark: str | None = None  # before

    def learn(self) -> Steps[MysqlStatements]:
        """Ask which database the ledger is in."""
        yield Apart(KeyQuery("?"))  # makes the tables
        ((database,),) = yield Apart(RowsQuery("SELECT DATABASE()"))
        return MysqlStatements(self.store.names.within(database), self.store.statements.flavor, " FOR UPDATE")

    def check_place(self) -> Steps[None]:
        """Check that the connection is to the ledger's server: two sessions cannot have one lock of it."""
        lock = f"onceward_{os.urandom(16).hex()}"
        ((*charsets, mode, is_stopped, _),) = yield RowsQuery(_FITS.format(lock))
        if set(charsets) != {"utf8mb4"}:
            raise ValueError(
                f"the connection's character set is {' and '.join(map(str, charsets))}, and a ledger needs utf8mb4"
            )
        if "SIMULTANEOUS_ASSIGNMENT" in str(mode):
            raise ValueError("the connection's sql_mode has SIMULTANEOUS_ASSIGNMENT, with which a ledger cannot write")
        if is_stopped:
            raise ValueError("the connection's time is not the server's, as after SET timestamp: set it to DEFAULT")
        took = yield Apart(RowsQuery(f"SELECT GET_LOCK('{lock}', 0)", f"DO RELEASE_LOCK('{lock}')"))
        yield RowsQuery(f"DO RELEASE_LOCK('{lock}')")
        if took[0][0]:
            raise AnotherDatabase(
                f"the connection is to another server than the ledger {self.store.url}; effect and record commit together "
                "only in one"
            )

    def begin(self) -> Steps[None]:
        self._mark = self._next_mark = None
        yield from super().begin()
        self._next_mark = f"onceward_{os.urandom(8).hex()}"

    def began_here(self) -> Steps[bool]:
        """Look for the savepoint. If the server itself has rolled back, as after a deadlock, nothing else has happened since."""
        if self._mark is None or self.trouble is not None:
            return True
        try:
            yield RowsQuery(f"RELEASE SAVEPOINT {self._mark}", f"SAVEPOINT {self._mark}")
        except StoreError as error:
            self.trouble = None
            if code_of(error.__cause__) != NO_SAVEPOINT:
                return True
            try:
                yield RowsQuery(_SEEN)
            except StoreError:
                return True
            return self.state is not TransactionState.OPEN
        return True

    def talk(self, request: object) -> Acts:
        assert isinstance(request, MysqlQuery)
        completes = request is self.last
        statements = self.statements
        if not request.blocks:
            return request.reply((yield "fetch", (request.texts(statements),)))
        request.patience = _PATIENCE
        texts = request.texts(statements)
        mark = self._next_mark or self._mark
        if completes and mark is not None:
            texts = [f"RELEASE SAVEPOINT {mark}", *texts]
            self._mark = None  # an interrupt can come before its answer is taken
        if self._next_mark is not None:
            began = self.state is TransactionState.OPEN  # as a Session of SQLAlchemy can by itself
            texts = [*([] if began else ["START TRANSACTION"]), f"SAVEPOINT {self._next_mark}", *texts]
        texts = [_FITS_MARIADB, *texts] if statements.flavor.mariadb else [_FITS_MYSQL, *texts, _REST]
        try:
            rows = yield "fetch", (block(texts, statements.flavor),)
        except DriverFailed as failed:
            if completes:
                self._mark = mark
            if self.state is not TransactionState.LOST:
                with contextlib.suppress(DriverFailed):  # the first error is the one that counts
                    # An error does not tell whether a transaction is open, an answer does.
                    yield "fetch", ([_SEEN if statements.flavor.mariadb else _REST],)
            if completes and code_of(failed.error) == NO_SAVEPOINT:
                raise Ended("the transaction that made the claim is over") from failed
            raise
        self._mark, self._next_mark = None if completes else mark, None
        return request.reply(rows)


class PymysqlDriver(CallersDriver):
    """A ``pymysql.Connection``."""

    def check(self) -> None:
        check_idle(state_of(self.connection), AS_A_SELECT)

    def fetch(self, texts: Sequence[str]) -> Any:
        return fetch(self.connection, texts)

    def finish(self) -> Any:
        return self.connection.commit()

    def undo(self) -> Any:
        return self.connection.rollback() if state_of(self.connection) is TransactionState.OPEN else None

    def cut(self) -> None:
        cut(self.connection)


class AsyncmyDriver(PymysqlDriver):
    """An ``asyncmy.Connection``."""

    awaited = True

    async def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        return await fetch_async(self.connection, texts)


def join(store: MysqlStore, connection: object) -> MysqlSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is none that we know.
        ValueError: it cannot hold a transaction of ours.
    """
    return MysqlSession(store, driver_of(__name__, _KINDS, connection, store.conduit.timeout, _CHOICES))
