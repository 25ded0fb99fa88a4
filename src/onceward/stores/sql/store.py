"""What people ask of a ledger in an SQL server: pages of its records, how many there are, and to make what it lacks."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

from onceward.core.drivers import Steps, drive
from onceward.core.record import COMPLETED, Reply
from onceward.core.selections import ByKey, ChainOf, Selection
from onceward.core.views import STATES
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Page, Part
from onceward.stores.sql.exchange import SqlQuery
from onceward.stores.sql.finding import Dialect, sql_of
from onceward.stores.sql.verbs import SqlVerbs
from onceward.stores.survey import READ, UNFINISHED, Survey


class SqlStore(SqlVerbs):
    """A ledger's tables, with the indexes ``open``, ``due`` and ``origin``.

    Attributes:
        names: of the tables: ``table``, ``meta`` and, without quotes, ``plain``. Its ``hint`` returns what a table's name is
            followed by, so that an index is used.
        dialect: how statements without a time of their own tell it.
        within: the condition of each index, by its name.
        raw: makes the request that returns a statement's rows.
        page: makes the request for a page, of a selection that has an index of this name.
    """

    resolution = 0.0
    poll = 0.05  # seconds; a waiter's look is a read by key
    max_result = 256 * 1024
    capabilities: Mapping[str, str] = {
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.contract:finds_due",
        **{
            name: f"onceward.stores.sql.store:{name}"
            for name in ("exists", "migrate", "provision", "survey", "template")
        },
    }
    names: Any
    dialect: ClassVar[Dialect]
    within: ClassVar[Mapping[str, str]]
    raw: Callable[[str], SqlQuery]
    page: Callable[[Any, Selection, str | None, int, str | None], SqlQuery]

    # --- by each database -----------------------------------------------------------------------------------------

    @abstractmethod
    def load(self, key: str) -> Steps[Reply]:
        """Read one record."""

    @abstractmethod
    def there(self) -> Steps[list[bool]]:
        """Return which of the two tables are there."""

    @abstractmethod
    def total(self) -> Steps[tuple[float, int]]:
        """Return the time, and about how many records there are by the server's statistics."""

    @abstractmethod
    def schema(self) -> str:
        """Return the SQL that makes the ledger, and the rights that a worker needs, in a comment."""

    # --- for all --------------------------------------------------------------------------------------------------

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        index = None
        if isinstance(selection, ChainOf):
            index = "origin"
        elif isinstance(selection, ByKey) and selection.criteria.are_within(UNFINISHED):
            index = "open"
        elif isinstance(selection, ByKey) and selection.criteria.are_about_messages:
            index = "due"
        page: Page = yield self.page(self.names, selection, after, limit, index)
        return page


def survey(store: SqlStore) -> Steps[Survey]:
    """Count the records that are not completed, by an index (:data:`onceward.stores.capabilities.SURVEY`).

    Up to :data:`READ` records, count all records. Above that, estimate.
    """
    yield from store.load("?")  # the first use makes the ledger
    table, hint, exact = store.names.table, store.names.hint, False
    now, total = yield from store.total()
    if total <= READ:  # the statistics may be old
        ((total,),) = yield store.raw(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {READ + 1}) s")
        exact = total <= READ
    rows = yield store.raw(
        f"SELECT status, count(*), {_number(store, 'LAPSED')} FROM {table}{hint('open')} "
        f"WHERE {store.within['open']} GROUP BY status"
    )
    counts = dict.fromkeys(UNFINISHED, 0) | {row[0]: int(row[1]) for row in rows}
    counts["LAPSED"] = sum(int(row[2]) for row in rows)
    ((counts["EXPIRED"],),) = yield store.raw(
        f"SELECT count(*) FROM {table}{hint('expiry')} "
        f"WHERE expires_at IS NOT NULL AND {sql_of(STATES['EXPIRED'], store.dialect)}"
    )
    if exact:  # two statements, two moments
        counts[COMPLETED] = max(0, total - sum(counts[status] for status in UNFINISHED))
    terms = f"{_number(store, 'UNSENT')}, {_number(store, 'REFUSED')}"
    ((unsent, refused),) = yield store.raw(f"SELECT {terms} FROM {table}{hint('due')} WHERE {store.within['due']}")
    counts |= {"UNSENT": int(unsent), "REFUSED": int(refused)}
    return Survey(UNFINISHED, True, counts, total, exact, now)


def _number(store: SqlStore, state: str) -> str:
    return f"coalesce(sum(CASE WHEN {sql_of(STATES[state], store.dialect)} THEN 1 ELSE 0 END), 0)"


def exists(store: SqlStore) -> bool:
    """Return whether the tables are there (:data:`onceward.stores.capabilities.EXISTS`)."""
    return all(drive(store.there(), store))


def provision(store: SqlStore, options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the tables (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    return migrate(store)


def migrate(store: SqlStore) -> Steps[list[Part]]:
    """Make what a ledger lacks, as the first use does (:data:`onceward.stores.capabilities.MIGRATE`). Several can do so at once.

    Raises:
        StoreError: the ledger is of another major version, or this user may not alter it.
    """
    there = yield from store.there()
    lacked = yield from store.prepare()
    names = (store.names.table, store.names.meta)
    parts = [Part(f"table {name}", not was) for name, was in zip(names, there, strict=True)]
    return [*parts, Part("its columns and indexes", lacked)]


def template(store: SqlStore) -> str:
    """Return the SQL that makes the ledger (:data:`onceward.stores.capabilities.TEMPLATE`)."""
    return store.schema()
