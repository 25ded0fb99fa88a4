"""The ledger in MySQL or MariaDB: a table beside the users' own data."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.errors import StoreError
from onceward.stores.contract import Polled
from onceward.stores.lanes.refusals import SqlError
from onceward.stores.mysql import schema
from onceward.stores.mysql.lane import DENIED, FAULTS, NO_TABLE, THERE, MysqlLanes
from onceward.stores.mysql.queries import (
    DIALECT,
    KeyQuery,
    MysqlPage,
    MysqlQuery,
    MysqlReader,
    MysqlWrite,
    RowsQuery,
    size_of,
)
from onceward.stores.mysql.schema import LONGEST_KEY, MARIADB, MysqlNames
from onceward.stores.mysql.statements import NOW, STARTED, MysqlStatements, block, literal
from onceward.stores.sql.columns import KNOWN, is_complete
from onceward.stores.sql.exchange import Row
from onceward.stores.sql.store import SqlStore

_PACKET: Final = 768 * 1024  # characters of the texts of one statement


class MysqlStore(SqlStore, Polled):
    """A ledger in MySQL 8 or MariaDB 10.6, or newer.

    Attributes:
        statements: those of this server, once the ledger was used.
    """

    faults = FAULTS
    dialect = DIALECT
    within = MysqlReader.within
    raw, page = staticmethod(partial(RowsQuery, action="count")), MysqlPage
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
        texts = request.texts(self.statements)
        return (block(texts, self.statements.flavor) if request.blocks else texts,)

    def prepare(self) -> Steps[bool]:
        """Make the ledger, or what it lacks. Return whether it lacked something.

        Each statement commits by itself, so an interrupted run leaves a part, which the next one completes. Several may do so at once.

        Raises:
            StoreError: its schema is of another version, or this user may not make it.
        """
        names = self.names
        meta = yield from _read_meta(names)
        flavor = schema.check(meta, self.url)
        lacks = not is_complete(meta, schema.MINOR)
        if lacks:
            try:
                for text in schema.tables(names, flavor):
                    yield RowsQuery(text)
                there = {str(row[0]) for row in (yield RowsQuery(f"SHOW COLUMNS FROM {names.table}"))}
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
        return lacks

    def purging(self, limit: int) -> Steps[int]:
        """Delete expired records, the longest expired first, and return how many. Those that somebody works on are left."""
        rows = yield RowsQuery(
            f"SELECT `key`, fence FROM {self.names.table} WHERE expires_at <= {STARTED} AND {KNOWN} ORDER BY expires_at "
            f"LIMIT {limit} FOR UPDATE SKIP LOCKED",
            action="purge",
        )
        if not rows:
            return 0
        keys, statements = ", ".join(literal(row[0]) for row in rows), self.statements
        texts = (
            statements.keep_high(max(row[1] for row in rows)),
            f"DELETE FROM {self.names.table} WHERE `key` IN ({keys}) AND expires_at <= {STARTED} AND {KNOWN}",
            "SELECT ROW_COUNT()",
        )
        ((count,),) = yield RowsQuery(*block(texts, statements.flavor), action="purge")
        return int(count)

    def _writing(self, write: Write, seen: Record | None) -> MysqlWrite:
        return MysqlWrite(write, self._fences.of(write, seen), seen)

    def _deleting(self, seen: Record) -> KeyQuery:
        return KeyQuery(seen.key, seen)

    def load(self, key: str) -> Steps[Reply]:
        reply: Reply = yield KeyQuery(key)
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

    def total(self) -> Steps[tuple[float, int]]:
        ((now,),) = yield RowsQuery(f"SELECT {NOW}")
        rows = yield RowsQuery(
            "SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() "
            f"AND table_name = '{self.names.plain}'"
        )
        return now / 1e6, int(rows[0][0] or 0) if rows else 0

    def there(self) -> Steps[list[bool]]:
        table = yield from _rows_of(f"SELECT 1 FROM {self.names.table} LIMIT 1")
        meta = yield from _rows_of(f"SELECT 1 FROM {self.names.meta} LIMIT 1")
        return [table is not None, meta is not None]

    def schema(self) -> str:
        names = self.names
        text = ";\n".join(schema.tables(names, schema.MARIADB))
        return (
            f"-- For MariaDB. On MySQL, write {schema.MYSQL.collation} for {schema.MARIADB.collation}.\n{text};\n\n"
            "-- All that a worker's user needs:\n"
            f"-- GRANT SELECT, INSERT, UPDATE, DELETE ON {names.table} TO worker;\n"
            f"-- GRANT SELECT, UPDATE ON {names.meta} TO worker;\n"
        )


def _read_meta(names: MysqlNames) -> Steps[dict[str, str]]:
    """Return what a ledger says of itself, and its server's version; only that if there is no ledger."""
    server = "SELECT 'server', VERSION()"
    rows = yield from _rows_of(f"SELECT name, value FROM {names.meta}", server)
    return {str(name): str(value) for name, value in rows or (yield RowsQuery(server))}


def _rows_of(*texts: str) -> Steps[list[Row] | None]:
    """Return the rows of statements on a table; None if it is not there."""
    try:
        rows: list[Row] = yield RowsQuery(*texts)
    except SqlError as error:
        if error.state != NO_TABLE:
            raise
        return None
    return rows


def _add_column(text: str) -> Steps[None]:
    """Add a column, unless another was faster."""
    try:
        yield RowsQuery(text)
    except SqlError as error:
        if error.state not in THERE:
            raise
