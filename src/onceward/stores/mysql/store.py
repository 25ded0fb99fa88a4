"""The ledger in MySQL or MariaDB: a table beside the users' own data."""

from collections.abc import Mapping, Sequence
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.selections import Selection
from onceward.errors import StoreError
from onceward.stores.contract import Part, Polled
from onceward.stores.lanes.refusals import SqlError
from onceward.stores.mysql import schema
from onceward.stores.mysql.lane import DENIED, FAULTS, NO_TABLE, THERE, MysqlLanes
from onceward.stores.mysql.queries import (
    DIALECT,
    DeleteQuery,
    LoadQuery,
    LongQuery,
    MysqlPage,
    MysqlQuery,
    MysqlReader,
    MysqlWrite,
    RowsQuery,
    size_of,
)
from onceward.stores.mysql.schema import LONGEST_KEY, MARIADB, MysqlNames
from onceward.stores.mysql.statements import NOW, STARTED, MysqlStatements, literal
from onceward.stores.sql.columns import KNOWN, is_complete
from onceward.stores.sql.exchange import Row
from onceward.stores.sql.store import SqlStore

_PACKET: Final = 768 * 1024  # characters of the texts of one statement


class MysqlStore(SqlStore, Polled):
    """A ledger in MySQL 8 or MariaDB 10.6, or newer.

    Args:
        conduit: the connections.
        names: of the tables.
        url: where it is, for messages; without a password.

    Attributes:
        statements: those of this server, once the ledger was used.
    """

    faults = FAULTS
    dialect = DIALECT
    within = MysqlReader.within
    capabilities: Mapping[str, str] = {
        **SqlStore.capabilities,
        "inspect": "onceward.stores.mysql.inspection:inspect",
        "transaction": "onceward.stores.mysql.session:join",
    }

    def __init__(self, conduit: MysqlLanes, names: MysqlNames, url: str) -> None:
        super().__init__(conduit, url)
        self.names = names
        self.statements = MysqlStatements(names, MARIADB)

    def arguments(self, request: MysqlQuery) -> tuple[Sequence[str]]:
        return (request.script(self.statements),)

    def prepare(self) -> Steps[None]:
        """Make the ledger, or what it lacks.

        Each statement commits by itself, so an interrupted run leaves a part, which the next one completes. Several may do so at once.

        Raises:
            StoreError: its schema is of another version, or this user may not make it.
        """
        names = self.names
        meta = yield from _read_meta(names)
        flavor = schema.check(meta, self.url)
        if not is_complete(meta, schema.MINOR):
            try:
                for text in schema.tables(names, flavor):
                    yield RowsQuery(text)
                there = yield from _columns_of(names)
                for column in [name for name in schema.ADDED if name not in there]:
                    yield from _add_column(schema.adding(names, column))
                yield RowsQuery(schema.noting(names))
            except SqlError as error:
                if error.state not in DENIED:
                    raise
                what = "migrate" if "version" in meta else "init"
                raise StoreError(
                    f"ledger {self.url}: this user may not make what is missing ({error}). Let a user that may CREATE and ALTER "
                    f"tables run `onceward {what}` once"
                ) from error
            flavor = schema.check((yield from _read_meta(names)), self.url)
        self.statements = MysqlStatements(names, flavor)

    def purging(self, limit: int) -> Steps[int]:
        """Delete expired records, the longest expired first, and return how many. Those that somebody works on are left."""
        rows = yield RowsQuery(
            f"SELECT `key`, fence FROM {self.names.table} WHERE expires_at <= {STARTED} AND {KNOWN} ORDER BY expires_at "
            f"LIMIT {limit} FOR UPDATE SKIP LOCKED",
            action="purge",
        )
        if not rows:
            return 0
        ((count,),) = yield DeleteManyQuery(list(rows))
        return int(count)

    def _writing(self, write: Write, fence: int, seen: Record | None) -> MysqlWrite:
        return MysqlWrite(write, fence, seen)

    def _deleting(self, seen: Record) -> DeleteQuery:
        return DeleteQuery(seen)

    def load(self, key: str) -> Steps[Reply]:
        reply: Reply = yield LoadQuery(key)
        return reply

    def _too_long(self, key: str) -> StoreError | None:
        """Return the error for a key that is too long. A session without strict mode would cut it, and take it for another one."""
        if len(key) <= LONGEST_KEY:
            return None
        return StoreError(
            f"ledger {self.url}: the key has {len(key)} characters, and may have {LONGEST_KEY}: {key[:60]}…"
        )

    def _parts(self, writes: list[Write]) -> list[list[Write]]:
        """Split writes so that a statement is no longer than ``max_allowed_packet``, which can be as low as 1 MB."""
        parts: list[list[Write]] = []
        size = _PACKET
        for write in writes:
            length = size_of(write)
            if (size := size + length) > _PACKET:
                parts.append([])
                size = length
            parts[-1].append(write)
        return parts

    # --- what people ask --------------------------------------------------------------------------------------------

    def raw(self, text: str) -> RowsQuery:
        return RowsQuery(text, action="count")

    def hint(self, index: str) -> str:
        """Return what makes the server use an index."""
        return f" FORCE INDEX ({self.names.index(index)})"

    def _page(
        self, selection: Selection, after: str | None, limit: int, index: str | None, seconds: float | None
    ) -> MysqlQuery:
        return MysqlPage(selection, after, limit, index, seconds)

    def has_index(self, index: str) -> Steps[bool]:
        try:
            rows = yield RowsQuery(f"SHOW INDEX FROM {self.names.table} WHERE Key_name = '{self.names.plain}_{index}'")
        except SqlError as error:
            if error.state not in NO_TABLE:  # which the next request makes
                raise
            return False
        return bool(rows)

    def total(self) -> Steps[tuple[float, int, int | None]]:
        """Return the time, and about how many records there are by the server's statistics."""
        ((now,),) = yield RowsQuery(f"SELECT {NOW}")
        rows = yield RowsQuery(
            "SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() "
            f"AND table_name = '{self.names.plain}'"
        )
        return now / 1e6, int(rows[0][0] or 0) if rows else 0, None

    def there(self) -> Steps[list[bool]]:
        there = []
        for name in (self.names.table, self.names.meta):
            try:
                yield RowsQuery(f"SELECT 1 FROM {name} LIMIT 1")
                there.append(True)
            except SqlError as error:
                if error.state not in NO_TABLE:
                    raise
                there.append(False)
        return there

    def missing(self) -> Steps[list[Part]]:
        """Make the columns and indexes that the ledger lacks. Return all, with which were made. Each statement commits by itself."""
        there = yield from self.there()
        had = (yield from _columns_of(self.names)) if there[0] else set[str]()
        yield from self.prepare()
        parts = [Part(f"column {name}", name not in had) for name in schema.ADDED]
        for index in schema.INDEXES:
            is_new = yield from self._make_index(index)
            parts.append(Part(f"index {self.names.plain}_{index}", is_new or not there[0]))
        return parts

    def _make_index(self, index: str) -> Steps[bool]:
        """Make an index if it is missing. InnoDB does so while workers go on."""
        if (yield from self.has_index(index)):
            return False
        try:
            yield LongQuery(schema.indexing(self.names, index))
        except SqlError as error:
            if error.state in THERE:
                return False
            if error.state not in DENIED:
                raise
            raise StoreError(
                f"ledger {self.url}: this user may not ALTER the table ({error}): let another one run `onceward migrate`"
            ) from error
        return True

    def schema(self) -> str:
        names = self.names
        text = ";\n".join(schema.tables(names, schema.MARIADB))
        return (
            f"-- For MariaDB. On MySQL, write {schema.MYSQL.collation} for {schema.MARIADB.collation}.\n{text};\n\n"
            "-- All that a worker's user needs:\n"
            f"-- GRANT SELECT, INSERT, UPDATE, DELETE ON {names.table} TO worker;\n"
            f"-- GRANT SELECT, UPDATE ON {names.meta} TO worker;\n"
        )


class DeleteManyQuery(RowsQuery):
    """Delete those of these records that are still expired. Before that, note the largest of their fences."""

    blocks, is_bare = True, False

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(action="purge")
        self._keys, self._fence = [row[0] for row in rows], max(row[1] for row in rows)

    def texts(self, statements: MysqlStatements) -> list[str]:
        keys, table = ", ".join(map(literal, self._keys)), statements.names.table
        return [
            statements.keep_high(self._fence),
            f"DELETE FROM {table} WHERE `key` IN ({keys}) AND expires_at <= {STARTED} AND {KNOWN}",
            "SELECT ROW_COUNT()",
        ]


def _read_meta(names: MysqlNames) -> Steps[dict[str, str]]:
    """Return what a ledger says of itself, and its server's version; only that if there is no ledger."""
    try:
        rows = yield RowsQuery(f"SELECT name, value FROM {names.meta}", "SELECT 'server', VERSION()")
    except SqlError as error:
        if error.state not in NO_TABLE:
            raise
        rows = yield RowsQuery("SELECT 'server', VERSION()")
    return {str(name): str(value) for name, value in rows}


def _columns_of(names: MysqlNames) -> Steps[set[str]]:
    """Return the columns of the ledger's table."""
    rows = yield RowsQuery(f"SHOW COLUMNS FROM {names.table}")
    return {str(row[0]) for row in rows}


def _add_column(text: str) -> Steps[None]:
    """Add a column, unless another was faster."""
    try:
        yield RowsQuery(text)
    except SqlError as error:
        if error.state not in THERE:
            raise
