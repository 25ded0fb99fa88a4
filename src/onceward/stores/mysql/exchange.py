"""Runs the requests of a MySQL ledger on its connections, and makes the ledger on first use."""

from collections.abc import Sequence

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.mysql import schema
from onceward.stores.mysql.faults import DENIED, FAULTS, NO_TABLE, THERE
from onceward.stores.mysql.queries import MysqlQuery, MysqlWrite, MysqlWrites, RowsQuery
from onceward.stores.mysql.schema import ADDED, MARIADB, MysqlNames, adding, check, noting, tables
from onceward.stores.mysql.statements import STARTED, MysqlStatements, literal
from onceward.stores.sql.columns import KNOWN, is_complete
from onceward.stores.sql.exchange import PlainExchange, SqlConduit, SqlExchange
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import SqlError

MysqlConduit = SqlConduit[Sequence[str]]


class MysqlPlain(PlainExchange[Sequence[str]]):
    """Runs requests without a look at the schema.

    Attributes:
        statements: those of this server, once the ledger was used.
    """

    faults = FAULTS

    def __init__(self, conduit: MysqlConduit, names: MysqlNames, url: str) -> None:
        super().__init__(conduit, url)
        self.statements = MysqlStatements(names, MARIADB)

    def asked(self, request: MysqlQuery) -> tuple[Sequence[str]]:
        """Return the statements."""
        return (request.sent(self.statements),)


class MysqlExchange(SqlExchange[MysqlPlain]):
    """The I/O of a ledger.

    Args:
        conduit: the connections.
        names: of the tables.
        url: where it is, for messages; without a password.
    """

    def __init__(self, conduit: MysqlConduit, names: MysqlNames, url: str) -> None:
        super().__init__(MysqlPlain(conduit, names, url), url)
        self.names = names

    @property
    def statements(self) -> MysqlStatements:
        """The statements of this server, once the ledger was used."""
        return self.plain.statements

    def _prepared(self, request: object) -> Steps[None]:
        """Make the ledger, or what it lacks."""
        meta = yield from prepared_ledger(self.names, self.url)
        self.plain.statements = MysqlStatements(self.names, check(meta, self.url))

    def _needs_ledger(self, request: object) -> bool:
        """Return whether the ledger must be there for a request."""
        return type(request) is not RowsQuery

    def _purging(self, limit: int) -> Steps[int]:
        """Delete expired records, the longest expired first, and return how many."""
        return purging(self.names, limit)

    def _claimed(self, request: object) -> int:
        """Return how many keys a request claims."""
        if type(request) is MysqlWrites:
            return request.rank * request.count
        return request.rank if type(request) is MysqlWrite else 0


def read_meta(names: MysqlNames) -> Steps[dict[str, str]]:
    """Return what a ledger says of itself, and its server's version; only that if there is no ledger."""
    try:
        rows = yield RowsQuery(f"SELECT name, value FROM {names.meta}", "SELECT 'server', VERSION()")
    except SqlError as error:
        if error.state not in NO_TABLE:
            raise
        rows = yield RowsQuery("SELECT 'server', VERSION()")
    return {str(name): str(value) for name, value in rows}


def prepared_ledger(names: MysqlNames, url: str) -> Steps[dict[str, str]]:
    """Make the ledger, or what it lacks, and return what it says of itself.

    Each statement commits by itself, so an interrupted run leaves a part, which the next one completes. Several may do so at once.

    Raises:
        StoreError: its schema is of another version, or this user may not make it.
    """
    meta = yield from read_meta(names)
    flavor = check(meta, url)
    if is_complete(meta, schema.MINOR):
        return meta
    try:
        for text in tables(names, flavor):
            yield RowsQuery(text)
        there = yield from columns_of(names)
        for column in [name for name in ADDED if name not in there]:
            yield from added(adding(names, column))
        yield RowsQuery(noting(names))
    except SqlError as error:
        if error.state not in DENIED:
            raise
        what = "migrate" if "version" in meta else "init"
        raise StoreError(
            f"ledger {url}: this user may not make what is missing ({error}). Let a user that may CREATE and ALTER tables run "
            f"`onceward {what}` once"
        ) from error
    return (yield from read_meta(names))


def columns_of(names: MysqlNames) -> Steps[set[str]]:
    """Return the columns of the ledger's table."""
    rows = yield RowsQuery(f"SHOW COLUMNS FROM {names.table}")
    return {str(row[0]) for row in rows}


def added(text: str) -> Steps[bool]:
    """Add a column or an index. Return False if another was faster."""
    try:
        yield RowsQuery(text)
    except SqlError as error:
        if error.state not in THERE:
            raise
        return False
    return True


class DeleteManyQuery(RowsQuery):
    """Delete those of these records that are still expired. Before that, note the largest of their fences."""

    __slots__ = ("_fence", "_keys")
    blocks = True

    def __init__(self, found: list[Row]) -> None:
        super().__init__(action="purge")
        self._keys, self._fence = [row[0] for row in found], max(row[1] for row in found)

    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements."""
        keys, table = ", ".join(map(literal, self._keys)), statements.names.table
        return [
            statements.keep_high(self._fence),
            f"DELETE FROM {table} WHERE `key` IN ({keys}) AND expires_at <= {STARTED} AND {KNOWN}",
            "SELECT ROW_COUNT()",
        ]


def purging(names: MysqlNames, limit: int) -> Steps[int]:
    """Delete expired records, the longest expired first, and return how many. Those that somebody works on are left."""
    found = yield RowsQuery(
        f"SELECT `key`, fence FROM {names.table} WHERE expires_at <= {STARTED} AND {KNOWN} ORDER BY expires_at LIMIT {limit} "
        "FOR UPDATE SKIP LOCKED",
        action="purge",
    )
    if not found:
        return 0
    rows = yield DeleteManyQuery(list(found))
    ((gone,),) = rows
    return int(gone)
