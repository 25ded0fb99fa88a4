"""The ledger in PostgreSQL: a table beside the users' own data."""

from collections.abc import Mapping, Sequence
from typing import Final

from onceward.core.drivers import Sleep, Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import KeyLocked
from onceward.errors import StoreError
from onceward.observe.events import StoreRequest
from onceward.stores.lanes.refusals import SqlError
from onceward.stores.postgres import schema
from onceward.stores.postgres.cursors import CANCELED, DENIED, FAULTS, NO_TABLE
from onceward.stores.postgres.lane import PostgresLanes
from onceward.stores.postgres.listening import Ear
from onceward.stores.postgres.queries import (
    OneRow,
    PostgresPage,
    PostgresReader,
    Query,
    RawQuery,
    WriteQuery,
)
from onceward.stores.postgres.schema import Names
from onceward.stores.postgres.statements import Statements
from onceward.stores.sql.columns import is_complete
from onceward.stores.sql.finding import Dialect
from onceward.stores.sql.store import SqlStore

LONGEST_KEY: Final = 2600  # bytes: an index takes 2,704, and some have more columns than the key
_THERE: Final = "SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL"
# Of the last vacuum or analyze. A partitioned table has its rows in other ones.
_TOTAL: Final = (
    "SELECT extract(epoch FROM clock_timestamp())::float8, coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND (oid = to_regclass($1::text) "
    "OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1::text))))"
)


class ChangeRequest:
    """Waits until a key may have changed, at most so many seconds: no request to the server."""

    is_bare, claims = True, 0  # as SqlQuery

    def __init__(self, key: str, most: float) -> None:
        self.key, self.most = key, most

    def by(self, conduit: PostgresLanes) -> Ear:
        return conduit.ear


class PostgresStore(SqlStore):
    """A ledger in a PostgreSQL database, 13 or newer."""

    faults = FAULTS
    dialect = Dialect("(SELECT clock_timestamp())", "(SELECT clock_timestamp()) - interval '{} seconds'")
    within = PostgresReader.within
    raw, page = RawQuery, PostgresPage
    capabilities: Mapping[str, str] = {
        **SqlStore.capabilities,
        "inspect": "onceward.stores.postgres.inspection:inspect",
        "transaction": "onceward.stores.postgres.session:join",
    }

    def __init__(self, conduit: PostgresLanes, names: Names, url: str) -> None:
        super().__init__(conduit, url)
        self.names = names
        self.statements = Statements(names.table, names.meta)
        self.tells = True  # whether the end of a claim can tell those who wait for its key

    def _too_long(self, key: str) -> StoreError | None:
        """Return the error for a key that an index may not take later, when its claim has messages."""
        if (size := len(key.encode())) <= LONGEST_KEY:
            return None
        return StoreError(f"ledger {self.url}: the key has {size} bytes, and may have {LONGEST_KEY}: {key[:60]}…")

    def arguments(self, request: Query) -> tuple[str, Sequence[object]]:
        return request.text, request.values

    def prepare(self) -> Steps[bool]:
        """Make the ledger, or what it lacks. Return whether it lacked something.

        Raises:
            StoreError: its schema is of another version, or this role may not make it.
        """
        read_meta = schema.read_meta(self.names)
        try:
            meta = dict((yield RawQuery(read_meta)))
        except SqlError as error:
            if error.state not in NO_TABLE:
                raise
            meta = dict((yield RawQuery(schema.ENCODING)))
        schema.check(meta, self.url)
        lacks = not is_complete(meta, schema.MINOR)
        if lacks:
            try:
                yield RawQuery(schema.make(self.names))
            except KeyLocked as error:
                raise StoreError(
                    f"ledger {self.url}: its tables are in use, or others make them now", transient=True
                ) from error
            except SqlError as error:
                if error.state != DENIED:
                    raise
                what = "migrate" if "version" in meta else "init"
                raise StoreError(
                    f"ledger {self.url}: this role may not make what is missing ({error}). Let the tables' owner run "
                    f"`onceward {what}` once"
                ) from error
            meta = dict((yield RawQuery(read_meta)))
        self.tells = schema.TELLS in meta
        if not self.tells:
            self.statements = Statements(self.names.table, self.names.meta, tells=False)
        return lacks

    def purging(self, limit: int) -> Steps[int]:
        ((count,),) = yield Query("purge", self.statements.purge, (limit,))
        return int(count)

    def events_of(self, request: object, reply: object, seconds: float) -> Sequence[StoreRequest]:
        """Return the events of a request. Waiting is none."""
        return () if type(request) is ChangeRequest else super().events_of(request, reply, seconds)

    def _writing(self, write: Write, seen: Record | None) -> Query:
        ours = self.statements
        texts = (ours.insert, ours.insert_many) if seen is None else (ours.swap, ours.swap_many)
        return WriteQuery(texts, write, self._fences.of(write, seen), seen)

    def _deleting(self, seen: Record) -> Query:
        return OneRow("delete", self.statements.delete, (seen.key, *seen.version))

    def _stops_all(self, error: StoreError) -> bool:
        """Return whether one key of a batch can have stopped the whole statement, also by the session's ``statement_timeout``."""
        return super()._stops_all(error) or (isinstance(error, SqlError) and error.state == CANCELED)

    def load(self, key: str) -> Steps[Reply]:
        reply: Reply = yield OneRow("load", self.statements.load, (key,))
        return reply

    def changed(self, key: str, seconds: float, most: float, /) -> Steps[None]:
        """Wait until told that the claim on a key has ended, where a connection can listen."""
        if not self.tells or seconds < self.poll / 2 or not (yield ChangeRequest(key, most)):
            yield Sleep(seconds)

    # --- what people ask --------------------------------------------------------------------------------------------

    def total(self) -> Steps[tuple[float, int]]:
        ((now, total),) = yield RawQuery(_TOTAL, self.names.table)
        return now, total

    def there(self) -> Steps[list[bool]]:
        (there,) = yield RawQuery(_THERE, self.names.table, self.names.meta)
        return list(there)

    def schema(self) -> str:
        names = self.names
        statements = [*schema.schema(names), *schema.indexes(names).values(), *schema.comments(names)]
        granted = [
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {names.table} TO worker",
            f"GRANT SELECT, UPDATE ON {names.meta} TO worker",
        ]
        if names.schema is not None:
            statements.insert(0, f'CREATE SCHEMA IF NOT EXISTS "{names.schema}"')
            granted.insert(0, f'GRANT USAGE ON SCHEMA "{names.schema}" TO worker')
        rights = "".join(f"-- {one};\n" for one in granted)
        return ";\n".join(statements) + f";\n\n-- All that a worker's role needs:\n{rights}"
