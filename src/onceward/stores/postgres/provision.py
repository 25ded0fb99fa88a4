"""Making a PostgreSQL ledger ahead of its first use, or what an earlier version's ledger lacks."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.postgres import schema
from onceward.stores.postgres.exchange import prepared
from onceward.stores.postgres.queries import RawQuery

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_THERE: Final = "SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL"
_COLUMNS: Final = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1::text) AND NOT attisdropped"


def found(store: "PostgresStore") -> bool:
    """Return whether the tables are there (:data:`onceward.stores.capabilities.FOUND`)."""
    ((table, meta),) = store.bare.exchange(RawQuery(_THERE, store.names.table, store.names.meta))
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
    """Add the columns that an earlier version's ledger lacks (:data:`onceward.stores.capabilities.MIGRATE`).

    Raises:
        StoreError: the ledger is of another major version, or this role may not alter it.
    """
    rows = yield RawQuery(_COLUMNS, store.names.table)
    had = {row[0] for row in rows}
    yield from prepared(store.names, store.url)
    return [Part(f"column {name}", name not in had) for name in schema.ADDED]


def template(store: "PostgresStore", form: str, options: AbstractSet[str]) -> str:
    """Return the SQL that makes the ledger (:data:`onceward.stores.capabilities.TEMPLATE`)."""
    check_options(store.url, options)
    if form != "sql":
        raise ValueError(f"--print {form}: PostgreSQL's ledger is printed as sql")
    names = store.names
    statements = schema.schema(names)
    granted = [
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {names.table} TO worker",
        f"GRANT SELECT, UPDATE ON {names.meta} TO worker",
    ]
    if names.schema is not None:
        statements.insert(0, f'CREATE SCHEMA IF NOT EXISTS "{names.schema}"')
        granted.insert(0, f'GRANT USAGE ON SCHEMA "{names.schema}" TO worker')
    rights = "".join(f"-- {one};\n" for one in granted)
    return ";\n".join(statements) + f";\n\n-- All that a worker's role needs:\n{rights}"
