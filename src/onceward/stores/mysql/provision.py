"""Making a MySQL ledger ahead of its first use, or what an earlier version's ledger lacks."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from onceward.core.drivers import Steps, drive
from onceward.errors import StoreError
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.mysql import schema
from onceward.stores.mysql.exchange import columns_of, prepared_ledger
from onceward.stores.mysql.faults import DENIED, NO_TABLE, THERE
from onceward.stores.mysql.finding import has_index
from onceward.stores.mysql.queries import LongQuery, RowsQuery
from onceward.stores.sql.refusals import SqlError

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore


def found(store: "MysqlStore") -> bool:
    """Return whether the tables are there (:data:`onceward.stores.capabilities.FOUND`)."""
    return all(drive(_there(store), store.plain))


def provision(store: "MysqlStore", options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the tables (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    there = yield from _there(store)
    yield from prepared_ledger(store.names, store.url)
    names = (store.names.table, store.names.meta)
    return [Part(f"table {name}", not was) for name, was in zip(names, there, strict=True)]


def _there(store: "MysqlStore") -> Steps[list[bool]]:
    there = []
    for name in (store.names.table, store.names.meta):
        try:
            yield RowsQuery(f"SELECT 1 FROM {name} LIMIT 1")
            there.append(True)
        except SqlError as error:
            if error.state not in NO_TABLE:
                raise
            there.append(False)
    return there


def migrate(store: "MysqlStore") -> Steps[list[Part]]:
    """Add the columns and the indexes that a ledger lacks (:data:`onceward.stores.capabilities.MIGRATE`).

    Each statement commits by itself. Run it again after an interrupt; several can run it at once.

    Raises:
        StoreError: the ledger is of another major version, or this user may not alter it.
    """
    there = yield from _there(store)
    had = (yield from columns_of(store.names)) if there[0] else set[str]()
    yield from prepared_ledger(store.names, store.url)
    parts = [Part(f"column {name}", name not in had) for name in schema.ADDED]
    for index in schema.INDEXES:
        made = yield from _indexed(store, index)
        parts.append(Part(f"index {store.names.plain}_{index}", made or not there[0]))
    return parts


def _indexed(store: "MysqlStore", index: str) -> Steps[bool]:
    """Make an index if it is missing. InnoDB does so while workers go on."""
    if (yield from has_index(store.names, index)):
        return False
    try:
        yield LongQuery(schema.indexing(store.names, index))
    except SqlError as error:
        if error.state in THERE:
            return False
        if error.state not in DENIED:
            raise
        raise StoreError(
            f"ledger {store.url}: this user may not ALTER the table ({error}): let another one run `onceward migrate`"
        ) from error
    return True


def outbox(store: "MysqlStore") -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use makes the ledger
    if not (yield from has_index(store.names, "due")):
        raise StoreError(
            f"ledger {store.url}: it has no index of messages. Let a user that may ALTER tables run "
            f"`onceward migrate --store {store.url}` once"
        )


def template(store: "MysqlStore", form: str, options: AbstractSet[str]) -> str:
    """Return the SQL that makes the ledger (:data:`onceward.stores.capabilities.TEMPLATE`)."""
    check_options(store.url, options)
    if form != "sql":
        raise ValueError(f"--print {form}: MySQL's ledger is printed as sql")
    names = store.names
    text = ";\n".join(schema.tables(names, schema.MARIADB))
    order = schema.MYSQL.collation
    rights = (
        f"-- GRANT SELECT, INSERT, UPDATE, DELETE ON {names.table} TO worker;\n"
        f"-- GRANT SELECT, UPDATE ON {names.meta} TO worker;\n"
    )
    return (
        f"-- For MariaDB. On MySQL, write {order} for {schema.MARIADB.collation}.\n{text};\n\n"
        f"-- All that a worker's user needs:\n{rights}"
    )
