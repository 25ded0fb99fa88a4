"""The queries of a PostgreSQL ledger: a statement, its values, and how its rows become a reply.

A connection of any driver can run one: send ``text`` with ``values`` (``$1`` and so on), and pass the rows to ``reply``. The
first value is the longest wait for a lock, in milliseconds.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from onceward.core.comparisons import Clause
from onceward.core.protocol import SOME_DAY
from onceward.core.record import Record, Reply, Write
from onceward.stores.contract import Page, due_page, point_of
from onceward.stores.postgres.statements import FIRST, WRITE
from onceward.stores.sql.columns import COLUMNS, FIELDS
from onceward.stores.sql.exchange import Met, Row, SqlQuery
from onceward.stores.sql.finding import FOUND, Dialect, end_of, looking, next_page
from onceward.stores.sql.verbs import BRISK

_OF_WRITE: Final = [Write._fields.index(kind.name) for kind in WRITE]
_BRISK: Final = str(BRISK)
OF_T: Final = ", ".join(f"t.{name}" for name in FIELDS)
_KEYS: Final = "key > $2 AND key >= $3 AND ($4::text IS NULL OR key < $4)"
_NOW: Final = "(SELECT now FROM c)"
DIALECT: Final = Dialect(_NOW, f"{_NOW} - interval '{{}} seconds'")
_UNTIL: Final = f"({_NOW} + make_interval(secs => $5::float8))"
# Texts of any length.
_LONG: Final = attrgetter("key", "result", "error", "needs", "steps", "unsent", "origin", "input", "history")
_FENCE, _ERROR = ([kind.name for kind in WRITE].index(name) for name in ("fence", "error"))


class Query(SqlQuery):
    """One statement and its values.

    Attributes:
        text: the statement.
        values: text, numbers, None, or lists of them.
    """

    __slots__ = ("text", "values")

    def __init__(self, action: str, text: str, values: Sequence[object]) -> None:
        super().__init__(action)
        self.text = text
        self.values = (_BRISK, *values)


class OneRow(Query):
    """A verb on one key."""

    __slots__ = ()

    def reply(self, rows: Sequence[Row]) -> Reply:
        """Return it; without a record, nobody holds the key, or the statement did not see who."""
        return reply_of(rows[0]) if rows else Reply(False, None, 0.0)


class WriteQuery(OneRow):
    """The insert of one key, or the swap of the record ``seen``.

    Args:
        texts: its statement, and the one for many keys.
        write: what to write.
        fence: the write's fence, as the statements take it.
        seen: the record that a swap replaces.
    """

    __slots__ = ("_many", "claims", "key", "kind", "rank", "seen", "write")

    def __init__(self, texts: tuple[str, str], write: Write, fence: int, seen: Record | None = None) -> None:
        text, self._many = texts
        self.kind, version = ("insert", ()) if seen is None else ("swap", seen.version)
        self.text, self.values = text, (_BRISK, *values_of(write, fence), *version)
        self.action, self.key, self.write, self.seen = self.kind, write.key, write, seen
        self.rank = self.claims = int(seen is None)

    @property
    def size(self) -> int:
        return sum(map(len, filter(None, _LONG(self.write))))

    def merged(self, requests: Sequence["WriteQuery"]) -> "ManyRows":
        ordered = sorted(requests, key=lambda one: one.key)
        columns = map(list, zip(*(one.values[1:] for one in ordered), strict=True))
        return ManyRows(self.action, self._many, list(columns))


class ManyRows(Query):
    """The inserts or the swaps of many keys, by columns."""

    __slots__ = ("claims", "rank")

    def __init__(self, kind: str, text: str, columns: Sequence[list[object]]) -> None:
        super().__init__(f"{kind}_many", text, columns)
        self.rank = int(kind == "insert")
        self.claims = self.rank * len(columns[0])

    def reply(self, rows: Sequence[Row]) -> Met:
        replies = {row[2]: reply_of(row) for row in rows if row[0] is not None}
        return Met(replies, rows[0][1] if rows else 0.0)


class PostgresPage(Query):
    """One page of records in the order of their keys, and one more row to know whether it is the last.

    Args:
        table: its name.
        keys: what the keys start with, and the key after which the page begins.
        limit: the most records.
        clause: which records are meant; it looks at a limited number of rows. None means all.
        within: the condition of an index, to look only at its rows.
        more: the values of the condition, from ``$6`` on.
        seconds: if it can take longer than the ledger's timeout.
    """

    __slots__ = ("limit", "seconds")

    def __init__(
        self,
        table: str,
        keys: tuple[str, str | None],
        limit: int,
        clause: Clause | None = None,
        within: str | None = None,
        more: Sequence[object] = (),
        seconds: float | None = None,
    ) -> None:
        (prefix, after), rows = keys, _KEYS if within is None else f"{_KEYS} AND {within}"
        looks, counts = "", "0, ''"
        found = f"LEFT JOIN (SELECT * FROM {table} WHERE {rows} ORDER BY key LIMIT $5::bigint) t ON true ORDER BY t.key"
        if clause is not None:
            looks = f", {looking(clause, table, rows, '$5::bigint', DIALECT)}"
            counts, found = "l.rows, l.last", f"CROSS JOIN {FOUND.format(table=table)}"
        text = f"{FIRST}{looks} SELECT t.key IS NULL AND NULL, c.now, {OF_T}, {counts} FROM c {found}"
        super().__init__("select", text, (after or "", prefix, end_of(prefix), limit + 1, *more))
        self.limit, self.seconds = limit, seconds

    def reply(self, rows: Sequence[Row]) -> Page:
        looked, last = rows[0][-2:]
        replies = [reply_of(row[:-2]) for row in rows]
        records = [reply.record for reply in replies if reply.record is not None]
        point = next_page([record.key for record in records], self.limit, looked, last)
        return Page(records[: self.limit], point, replies[0].now)


class DueQuery(Query):
    """One page of records whose messages are due, and one more row to know whether it is the last."""

    __slots__ = ("limit",)

    def __init__(self, table: str, after: str | None, limit: int, ahead: float) -> None:
        text = (
            f"{FIRST} SELECT t.key IS NULL AND NULL, c.now, {OF_T}, (SELECT date_part('epoch', min(due_at) - {_NOW}) "
            f"FROM {table} WHERE due_at > {_UNTIL} AND due_at < {_NOW} + interval '{SOME_DAY:.0f} seconds') "
            f"FROM c LEFT JOIN (SELECT {COLUMNS} FROM {table} WHERE due_at <= {_UNTIL} "
            "AND (due_at, key) > (to_timestamp($2::float8), $3::text) ORDER BY due_at, key LIMIT $4::bigint) t ON true "
            "ORDER BY t.due_at, t.key"
        )
        super().__init__("select", text, (*point_of(after), limit + 1, ahead))
        self.limit = limit

    def reply(self, rows: Sequence[Row]) -> Page:
        replies = [reply_of(row[:-1]) for row in rows]
        records = [reply.record for reply in replies if reply.record is not None]
        return due_page(records, self.limit, replies[0].now, rows[0][-1])


class PurgeQuery(Query):
    """Delete expired records."""

    __slots__ = ()

    def reply(self, rows: Sequence[Row]) -> int:
        count: int = rows[0][0]
        return count


class RawQuery(Query):
    """A statement without a wait of ours, which needs no ledger; its reply is its rows."""

    __slots__ = ()
    is_bare = True

    def __init__(self, text: str, *values: object) -> None:
        super().__init__("schema", text, ())
        self.values = values

    def reply(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows


class SlowQuery(RawQuery):
    """A statement that can take hours."""

    __slots__ = ()
    seconds = 86400.0


def reply_of(row: Row) -> Reply:
    """Return the reply of one key."""
    won = row[0]
    if won is None:
        return Reply(False, None, row[1])
    return tuple.__new__(Reply, (won, tuple.__new__(Record, row[2:]), row[1]))


def values_of(write: Write, fence: int) -> list[object]:
    """Return a write's values, in the order of the statements, with this fence."""
    values: list[object] = [write[at] for at in _OF_WRITE]
    values[_FENCE], values[_ERROR] = fence, _kept(write.error)
    return values


def _kept(error: str | None) -> str | None:
    """Return an error without NUL: a handler's failure must be recorded all the same."""
    return error if error is None or "\0" not in error else error.replace("\0", "\\0")
