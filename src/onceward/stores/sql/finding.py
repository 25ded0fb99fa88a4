"""Reading pages of records in SQL: by key, status and age, of a chain, or by when messages are due.

This file alone prints the protocol's conditions on a record.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from onceward.core.comparisons import Clause, Comparison, Every
from onceward.core.origin import beginning
from onceward.core.protocol import STATUSES
from onceward.core.record import Record
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.core.views import ANY, SOME_DAY
from onceward.stores.contract import Damaged, Page, point_of, token_of

LOOKED_AT: Final = 5000  # rows of one request, so that it ends in time also without an index
_DUE_AT: Final = Record._fields.index("due_at")
OF_T: Final = ", ".join(f"t.{name}" for name in Record._fields)


class Dialect(NamedTuple):
    """How a database tells the time.

    Attributes:
        now: the expression of the store's time.
        ago: the expression of an earlier moment, with ``{}`` for the seconds.
    """

    now: str
    ago: str


def sql_of(clause: Clause, dialect: Dialect) -> str:
    """Return a clause in SQL. NULL means no."""
    if not isinstance(clause, Comparison):
        word, nothing = (" AND ", "true") if isinstance(clause, Every) else (" OR ", "false")
        return f"({word.join(sql_of(term, dialect) for term in clause.terms) or nothing})"
    field, sign, value = clause
    if sign == "absent":
        return f"{field} IS NULL"
    if isinstance(value, str):
        return f"{field} {sign} '{value}'"
    moment = dialect.ago.format(f"{value:.6f}") if value else dialect.now
    return f"{field} {sign} {moment}"


def having(statuses: frozenset[str]) -> str:
    """Return the condition that a record has one of these statuses. A partial index and its queries need the same text."""
    rest = STATUSES - statuses
    if len(rest) == 1:
        return f"status <> '{next(iter(rest))}'"
    quoted = ", ".join(f"'{status}'" for status in sorted(statuses))
    return f"status IN ({quoted})"


class PageReader(ABC):
    """Makes the statement of one page. Its rows: the time, what it looked at, and a record or NULLs.

    Args:
        table: its name.
        dialect: of the database.

    Attributes:
        values: those of the statement, if it has parameters.
        start: what each statement begins with.
        within: the condition of each index, by its name.
        due: the name of the one of messages.
    """

    start: ClassVar[str] = ""
    within: ClassVar[Mapping[str, str]]
    due: ClassVar[str] = "due"

    def __init__(self, table: str, dialect: Dialect) -> None:
        self._table, self._dialect = table, dialect
        self.values: list[object] = []

    @abstractmethod
    def text(self, value: str) -> str:
        """Return a text as an expression."""

    @abstractmethod
    def time(self, seconds: float) -> str:
        """Return a moment as an expression."""

    def of_chain(self, start: str) -> str:
        """Return the condition that an origin begins so. It uses the index ``origin``."""
        raise NotImplementedError

    def hint(self, index: str) -> str:
        """Return what a table's name is followed by, so that an index is used."""
        return ""

    def select(self, *terms: str) -> str:
        """Return terms as they are selected."""
        return ", ".join(terms)

    def statement(self, selection: Selection, after: str | None, limit: int, index: str | None) -> str:
        """Return the statement of a page, and of one more row to know whether it is the last.

        Args:
            selection: which records are meant. It looks at a limited number of rows for a status or an age.
            after: where the page begins.
            limit: the most records.
            index: the index to look at.
        """
        if isinstance(selection, DueWithin):
            return self._due(selection.seconds, after, limit)
        prefix, clause = "", None
        if isinstance(selection, ChainOf):
            within = f" AND {self.of_chain(beginning(selection.root))}"
        else:
            prefix = selection.prefix
            clause = None if selection.criteria == ANY else selection.criteria.clause
            within = "" if index is None else f" AND {self.within[index]}"
        table = f"{self._table} t{'' if index is None else self.hint(index)}"
        order = "ORDER BY t.key"
        where = f"{self._keys(prefix, after)}{within}"
        rows = f"FROM {table} WHERE {where}"
        if clause is None:
            page = f"SELECT t.* {rows} {order} LIMIT {limit + 1}"
            return f"{self.start} {self._whole('SELECT 0 AS looked, NULL AS last', page, order)}"
        scope = f"{self.start}, scope" if self.start else "WITH scope"
        tally = "SELECT count(*) AS looked, max(name) AS last FROM scope"
        # SQLite and MariaDB need the join to look at no other rows, and PostgreSQL the bound.
        source = f"FROM scope CROSS JOIN {table} WHERE t.key = scope.name AND {where}"
        condition = f"t.key <= (SELECT max(name) FROM scope) AND {sql_of(clause, self._dialect)}"
        page = f"SELECT t.* {source} AND {condition} {order} LIMIT {limit + 1}"
        return f"{scope} AS (SELECT t.key AS name {rows} {order} LIMIT {LOOKED_AT}) {self._whole(tally, page, order)}"

    def _keys(self, prefix: str, after: str | None) -> str:
        """Return the condition of the keys to look at. One lower bound: of two, a range could begin at the looser one."""
        is_later = after is not None and after >= prefix
        first = f"t.key {'>' if is_later else '>='} {self.text(after if after and is_later else prefix)}"
        end = end_of(prefix)
        return first if end is None else f"{first} AND t.key < {self.text(end)}"

    def _due(self, ahead: float, after: str | None, limit: int) -> str:
        (due_at, key), order = point_of(after), "ORDER BY t.due_at, t.key"
        since, until = self.time(due_at), self._dialect.ago.format(f"{-ahead:.6f}")
        table = f"{self._table} t{self.hint(self.due)}"
        wait = (
            f"SELECT min(t.due_at) AS looked, NULL AS last FROM {table} WHERE t.due_at > {until} "
            f"AND t.due_at < {self._dialect.ago.format(f'{-SOME_DAY:.6f}')}"
        )
        page = (
            f"SELECT t.* FROM {table} WHERE t.due_at <= {until} AND t.due_at >= {since} "
            f"AND (t.due_at > {since} OR t.key > {self.text(key)}) {order} LIMIT {limit + 1}"
        )
        return f"{self.start} {self._whole(wait, page, order)}"

    def _whole(self, looks: str, page: str, order: str) -> str:
        selected = self.select(self._dialect.now, "x.looked", "x.last", OF_T)
        return f"SELECT {selected} FROM ({looks}) x LEFT JOIN ({page}) t ON true {order}"


def plain(rows: Sequence[Sequence[Any]]) -> tuple[list[Record], Sequence[Damaged]]:
    """Return the records that rows are."""
    return [tuple.__new__(Record, row) for row in rows], ()


def page_of(selection: Selection, limit: int, rows: Sequence[Sequence[Any]], sort_out: Any = plain) -> Page:
    """Return the page that a statement's rows make. Their times are in seconds.

    Args:
        selection: which records are meant.
        limit: the most records of a page.
        rows: those of the statement.
        sort_out: returns the records among rows, and those that are damaged.
    """
    now, looked, last = rows[0][:3]
    entries = [row[3:] for row in rows if row[3] is not None]
    page = entries[:limit]
    records, damaged = sort_out(page)
    if isinstance(selection, DueWithin):
        following = token_of(page[-1][_DUE_AT], str(page[-1][0])) if len(entries) > limit else None
        return Page(records, following, now, damaged, None if looked is None else looked - now)
    following = page[-1][0] if len(entries) > limit else last if looked == LOOKED_AT else None
    return Page(records, following, now, damaged)


def end_of(prefix: str) -> str | None:
    """Return the first text after all that start with the prefix; None if there is none."""
    rest = prefix.rstrip("\U0010ffff")
    if not rest:
        return None
    following = ord(rest[-1]) + 1
    return rest[:-1] + chr(following if following != 0xD800 else 0xE000)  # between them are no characters
