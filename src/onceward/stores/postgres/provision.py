"""Making a PostgreSQL ledger ahead of its first use, or what an earlier version's ledger lacks."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.postgres import schema
from onceward.stores.postgres.exchange import prepared
from onceward.stores.postgres.faults import DENIED
from onceward.stores.postgres.finding import index_of, is_indexed
from onceward.stores.postgres.queries import RawQuery, SlowQuery
from onceward.stores.sql.refusals import SqlError

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_THERE: Final = "SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL"
_COLUMNS: Final = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1::text) AND NOT attisdropped"
_BUILDING: Final = "SELECT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE relid = to_regclass($1::text))"


def found(store: "PostgresStore") -> bool:
    """Return whether the tables are there (:data:`onceward.stores.capabilities.FOUND`)."""
    ((table, meta),) = store.plain.exchange(RawQuery(_THERE, store.names.table, store.names.meta))
    return table is True and meta is True


def provision(store: "PostgresStore", options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the tables (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    (there,) = yield RawQuery(_THERE, store.names.table, store.names.meta)
    yield from prepared(store.names, store.url)
    return [
        Part(f"table {name}", not was) for name, was in zip((store.names.table, store.names.meta), there, strict=True)
    ]


def migrate(store: "PostgresStore") -> Steps[list[Part]]:
    """Add the columns and the indexes that an earlier version's ledger lacks (:data:`onceward.stores.capabilities.MIGRATE`).

    Raises:
        StoreError: the ledger is of another major version, or this role may not alter it.
    """
    rows = yield RawQuery(_COLUMNS, store.names.table)
    had = {row[0] for row in rows}
    yield from prepared(store.names, store.url)
    parts = [Part(f"column {name}", name not in had) for name in schema.ADDED]
    for name, statement in schema.indexes(store.names, concurrently=True).items():
        parts.append(Part(f"index {name}", (yield from _indexed(store, name, statement))))
    return parts


def _indexed(store: "PostgresStore", name: str, statement: str) -> Steps[bool]:
    """Make an index if it is missing. Workers go on meanwhile."""
    names = store.names
    if (yield from is_indexed(names, name)):
        return False
    ((building,),) = yield RawQuery(_BUILDING, names.table)
    if building:
        raise StoreError(
            f"ledger {store.url}: another session is building an index of {names.table}; run this again later"
        )
    try:
        if (left := (yield from index_of(names, name))) is not None:
            yield SlowQuery(f"DROP INDEX CONCURRENTLY IF EXISTS {left}")  # it is what a stopped building left
        yield SlowQuery(statement)
    except SqlError as error:
        if error.state != DENIED:
            raise
        raise StoreError(
            f"ledger {store.url}: only the table's owner may make its indexes ({error}): let that role run `onceward migrate`"
        ) from error
    return True


def outbox(store: "PostgresStore") -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use makes the ledger
    if not (yield from is_indexed(store.names, store.names.due)):
        raise StoreError(
            f"ledger {store.url}: it has no index of messages, because an earlier version made it. Let the tables' owner run "
            f"`onceward migrate --store {store.url}` once"
        )


def template(store: "PostgresStore", form: str, options: AbstractSet[str]) -> str:
    """Return the SQL that makes the ledger (:data:`onceward.stores.capabilities.TEMPLATE`)."""
    check_options(store.url, options)
    if form != "sql":
        raise ValueError(f"--print {form}: PostgreSQL's ledger is printed as sql")
    names = store.names
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
