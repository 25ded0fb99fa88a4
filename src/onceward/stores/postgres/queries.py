"""The queries of a PostgreSQL ledger: a statement, its values, and how its rows become a reply.

A connection of any driver can run one: send ``text`` with ``values`` (``$1`` and so on), and pass the rows to ``reply``. The
first value is the longest wait for a lock, in milliseconds.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import ClassVar, Final

from onceward.core.record import Record, Reply, Write
from onceward.core.selections import Selection
from onceward.stores.contract import Page
from onceward.stores.postgres.schema import ROOT, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.exchange import BatchReply, Row, SqlQuery
from onceward.stores.sql.finding import Dialect, PageReader, having, page_of
from onceward.stores.sql.verbs import BRISK
from onceward.stores.survey import UNFINISHED

_BRISK: Final = str(BRISK)
_NOW: Final = "(SELECT now FROM c)"
DIALECT: Final = Dialect(_NOW, f"{_NOW} - interval '{{}} seconds'")
# Texts of any length.
_LONG: Final = attrgetter("key", "result", "error", "needs", "steps", "unsent", "origin", "input", "history")
_FENCE, _ERROR = (Write._fields.index(name) + 1 for name in ("fence", "error"))  # among the values


class Query(SqlQuery):
    """One statement and its values.

    Attributes:
        text: the statement.
        values: text, numbers, None, or lists of them.
    """

    def __init__(self, action: str, text: str, values: Sequence[object]) -> None:
        super().__init__(action)
        self.text = text
        self.values: Sequence[object] = (_BRISK, *values)


class OneRow(Query):
    """A verb on one key."""

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

    def __init__(self, texts: tuple[str, str], write: Write, fence: int, seen: Record | None = None) -> None:
        text, self._many = texts
        self.kind, version = ("insert", ()) if seen is None else ("swap", seen.version)
        self.text, self.values = text, values_of(write, fence, version)
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

    def __init__(self, kind: str, text: str, columns: Sequence[list[object]]) -> None:
        super().__init__(f"{kind}_many", text, columns)
        self.rank = int(kind == "insert")
        self.claims = self.rank * len(columns[0])

    def reply(self, rows: Sequence[Row]) -> BatchReply:
        replies = {row[2]: reply_of(row) for row in rows if row[0] is not None}
        return BatchReply(replies, rows[0][1] if rows else 0.0)


class PostgresPage(Query):
    """One page of records."""

    def __init__(self, names: Names, selection: Selection, after: str | None, limit: int, index: str | None) -> None:
        reader = PostgresReader(names.table, DIALECT)
        super().__init__("select", reader.statement(selection, after, limit, index), reader.values)
        self._selection, self._limit = selection, limit

    def reply(self, rows: Sequence[Row]) -> Page:
        return page_of(self._selection, self._limit, rows)


class PostgresReader(PageReader):
    """The parameters follow that of :data:`FIRST`. PostgreSQL finds an index by itself."""

    start = FIRST
    within: ClassVar[Mapping[str, str]] = {"open": having(UNFINISHED), "due": "due_at IS NOT NULL"}

    def text(self, value: str) -> str:
        self.values.append(value)
        return f"${len(self.values) + 1}::text"

    def time(self, seconds: float) -> str:
        self.values.append(seconds)
        return f"to_timestamp(${len(self.values) + 1}::float8)"

    def of_chain(self, start: str) -> str:
        literal = self.text(start)
        same = f"{ROOT.format('origin')} = {ROOT.format(literal)}"
        return f"origin IS NOT NULL AND {same} AND starts_with(origin, {literal})"


class RawQuery(Query):
    """A statement without a wait of ours, which needs no ledger."""

    is_bare = True

    def __init__(self, text: str, *values: object) -> None:
        super().__init__("schema", text, ())
        self.values = values


class SlowQuery(RawQuery):
    """A statement that can take hours."""

    seconds = 86400.0


def reply_of(row: Row) -> Reply:
    """Return the reply of one key."""
    won = row[0]
    if won is None:
        return Reply(False, None, row[1])
    return tuple.__new__(Reply, (won, tuple.__new__(Record, row[2:]), row[1]))


def values_of(write: Write, fence: int, seen: Sequence[object]) -> Sequence[object]:
    """Return the values of a write with this fence, and of the version ``seen``, in the order of the statements."""
    values = [_BRISK, *write, *seen]
    values[_FENCE] = fence
    if write.error is not None:
        values[_ERROR] = write.error.replace("\0", "\\0")  # a handler's failure must be recorded all the same
    return values
