"""The requests of a MySQL ledger: the statements of each, and how their rows become a reply.

The statements depend on the server, which is known only when the first connection is open. So a request makes them when it is sent.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from onceward.core.comparisons import Clause
from onceward.core.protocol import SOME_DAY
from onceward.core.record import Record, Reply, Write
from onceward.errors import StoreError
from onceward.stores.contract import Page, due_page, point_of
from onceward.stores.mysql.statements import (
    NOW,
    OF_T,
    STARTED,
    TIMES,
    MysqlStatements,
    block,
    literal,
    microseconds,
    packed,
)
from onceward.stores.sql.exchange import Met, Row, SqlQuery
from onceward.stores.sql.finding import LOOKED_AT, Dialect, end_of, next_page, printed

DIALECT: Final = Dialect(STARTED, f"({STARTED} - {{}} * 1000000)")
_TIMES = [Record._fields.index(name) for name in TIMES]


class MysqlQuery(SqlQuery):
    """A request.

    Attributes:
        patience: seconds to wait for somebody's open transaction on the key; MySQL waits as the session does.
    """

    __slots__ = ("patience",)
    blocks = True  # whether its statements can be sent as one

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.patience = 0  # the server counts whole seconds

    def sent(self, statements: MysqlStatements) -> list[str]:
        """Return the statements as they are sent, one after another on one connection."""
        texts = self.texts(statements)
        return block(texts, statements.flavor) if self.blocks else texts

    @abstractmethod
    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements."""


class MysqlWrite(MysqlQuery):
    """The insert of one key, or the swap of the record ``seen``."""

    __slots__ = ("_number", "claims", "fence", "key", "kind", "rank", "seen", "write")

    def __init__(self, write: Write, fence: int, seen: Record | None) -> None:
        self.kind = self.action = "insert" if seen is None else "swap"
        self.patience = 0
        self.write, self.fence, self.seen, self.key, self._number = write, fence, seen, write.key, number()
        self.rank = self.claims = int(seen is None)

    @property
    def size(self) -> int:
        return size_of(self.write)

    def merged(self, requests: Sequence["MysqlWrite"]) -> "MysqlWrites":
        return MysqlWrites(self.action, sorted(requests, key=lambda one: one.key))

    def texts(self, statements: MysqlStatements) -> list[str]:
        if self.seen is None:
            return statements.insert([(self.write, self.fence)], self._number, self.patience)
        return statements.swap(self.write, self.seen, self.fence, self._number, self.patience)

    def reply(self, rows: Sequence[Row]) -> Reply | None:
        """Return it: without a record if somebody has deleted it since; None if it was written, and another write has come since."""
        row = unpacked(rows)[0]
        if self.seen is None:
            return reply_in(row)
        if len(row) == len(("written", "now", "stamped")):
            return Reply(True, self.write.at(row[2] / 1e6), row[1] / 1e6)
        written, mine = row[0] == 1, row[1] == 1
        if written and not mine:
            return None
        return reply_in((written, *row[2:])) if row[3] is not None else Reply(False, None, row[2] / 1e6)


class MysqlWrites(MysqlQuery):
    """The inserts or the swaps of many keys."""

    __slots__ = ("_number", "_writes", "claims", "rank")

    def __init__(self, kind: str, writes: Sequence[MysqlWrite]) -> None:
        super().__init__(f"{kind}_many")
        self._writes, self._number = writes, number()
        self.rank = int(kind == "insert")
        self.claims = self.rank * len(writes)

    def texts(self, statements: MysqlStatements) -> list[str]:
        if self.rank:
            return statements.insert([(one.write, one.fence) for one in self._writes], self._number, self.patience)
        swaps = [(one.write, one.seen, one.fence) for one in self._writes if one.seen is not None]
        return statements.swap_many(swaps, self._number, self.patience)

    def reply(self, rows: Sequence[Row]) -> Met:
        found = unpacked(rows)
        return Met({row[2]: reply_in(row) for row in found if row[2] is not None}, found[-1][1] / 1e6)


class LoadQuery(MysqlQuery):
    """Read one key."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        super().__init__("load")
        self.key = key

    def texts(self, statements: MysqlStatements) -> list[str]:
        return statements.load(self.key, self.patience)

    def reply(self, rows: Sequence[Row]) -> Reply:
        ((_, now, *fields),) = unpacked(rows)
        return Reply(False, None if fields[0] is None else record_in(fields), now / 1e6)


class DeleteQuery(MysqlQuery):
    """Delete one record."""

    __slots__ = ("_seen",)

    def __init__(self, seen: Record) -> None:
        super().__init__("delete")
        self._seen = seen

    def texts(self, statements: MysqlStatements) -> list[str]:
        return statements.delete(self._seen, self.patience)

    def reply(self, rows: Sequence[Row]) -> Reply:
        ((gone, _, now, *fields),) = unpacked(rows)
        held = None if fields[0] is None else record_in(fields)
        return Reply(True, self._seen, now / 1e6) if gone else Reply(False, held, now / 1e6)


class PageQuery(MysqlQuery):
    """One page of records in the order of their keys, and one more row to know whether it is the last.

    Args:
        keys: what the keys start with, and the key after which the page begins.
        limit: the most records.
        clause: which records are meant; it looks at a limited number of rows. None means all.
        within: the condition of an index, on the table ``t``, to look only at its rows.
        hint: what makes the server use no other index.
        seconds: if it can take longer than the ledger's timeout.
    """

    __slots__ = ("_clause", "_hint", "_keys", "_within", "limit", "seconds")

    def __init__(
        self,
        keys: tuple[str, str | None],
        limit: int,
        clause: Clause | None = None,
        within: str = "true",
        hint: str = "",
        seconds: float | None = None,
    ) -> None:
        super().__init__("select")
        self._keys, self.limit, self._clause = keys, limit, clause
        self._within, self._hint, self.seconds = within, hint, seconds

    def texts(self, statements: MysqlStatements) -> list[str]:
        rows = f"FROM {statements.names.table} t{self._hint} WHERE {keys_within(*self._keys)} AND {self._within}"
        tally, meant = "SELECT 0 AS looked, NULL AS last", ""
        if self._clause is not None:
            looked = f"(SELECT t.`key` {rows} ORDER BY t.`key` LIMIT {LOOKED_AT}) k"
            tally = f"SELECT count(*) AS looked, max(k.`key`) AS last FROM {looked}"
            meant = f" AND t.`key` <= (SELECT max(k.`key`) FROM {looked}) AND {printed(self._clause, DIALECT)}"
        page = f"SELECT t.* {rows}{meant} ORDER BY t.`key` LIMIT {self.limit + 1}"
        fields = packed("x.looked", "x.last", NOW, OF_T)
        return [f"SELECT {fields} FROM ({tally}) x LEFT JOIN ({page}) t ON true ORDER BY t.`key`"]

    def reply(self, rows: Sequence[Row]) -> Page:
        found = unpacked(rows)
        looked, last, now = found[0][:3]
        records = [record_in(fields) for _, _, _, *fields in found if fields[0] is not None]
        point = next_page([record.key for record in records], self.limit, looked, last)
        return Page(records[: self.limit], point, now / 1e6)


class DuePageQuery(MysqlQuery):
    """One page of records whose messages are due within ``ahead`` seconds, and one more row to know whether it is the last."""

    __slots__ = ("_after", "_ahead", "limit")

    def __init__(self, after: str | None, limit: int, ahead: float) -> None:
        super().__init__("select")
        self._after, self.limit, self._ahead = after, limit, ahead

    def texts(self, statements: MysqlStatements) -> list[str]:
        due_at, key = point_of(self._after)
        since = microseconds(due_at)
        table = f"{statements.names.table} t FORCE INDEX ({statements.names.index('due')})"
        until = f"{STARTED} + {microseconds(self._ahead)}"
        soon = f"t.due_at > {until} AND t.due_at < {STARTED} + {microseconds(SOME_DAY)}"
        page = (
            f"SELECT t.* FROM {table} WHERE t.due_at >= {since} AND t.due_at <= {until} "
            f"AND (t.due_at > {since} OR t.`key` > {literal(key)}) ORDER BY t.due_at, t.`key` LIMIT {self.limit + 1}"
        )
        wait = f"SELECT min(t.due_at) - {STARTED} AS wait FROM {table} WHERE {soon}"
        ordered = "ON true ORDER BY t.due_at, t.`key`"
        return [f"SELECT {packed('x.wait', NOW, OF_T)} FROM ({wait}) x LEFT JOIN ({page}) t {ordered}"]

    def reply(self, rows: Sequence[Row]) -> Page:
        found = unpacked(rows)
        wait, now = found[0][:2]
        records = [record_in(fields) for _, _, *fields in found if fields[0] is not None]
        return due_page(records, self.limit, now / 1e6, None if wait is None else wait / 1e6)


class RowsQuery(MysqlQuery):
    """Statements whose reply is their rows."""

    __slots__ = ("_texts",)
    blocks, is_bare = False, True  # they are also sent before the server is known

    def __init__(self, *texts: str, action: str = "schema") -> None:
        super().__init__(action)
        self._texts = list(texts)

    def texts(self, statements: MysqlStatements) -> list[str]:
        return self._texts

    def reply(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows


class LongQuery(RowsQuery):
    """Statements that can take hours."""

    __slots__ = ()
    seconds = 86400.0


def keys_within(prefix: str, after: str | None) -> str:
    """Return the condition of the keys to look at. One lower bound: of two, a range could begin at the looser one."""
    end = end_of(prefix)
    first = f"t.`key` > {literal(after)}" if after is not None and after >= prefix else f"t.`key` >= {literal(prefix)}"
    return first if end is None else f"{first} AND t.`key` < {literal(end)}"


def unpacked(rows: Sequence[Row]) -> list[list[Any]]:
    """Return the values of packed rows.

    Raises:
        StoreError: one is larger than the server's max_allowed_packet.
    """
    try:
        return [msgspec.json.decode(text) for (text,) in rows]
    except TypeError:
        raise StoreError("a record is longer than the server's max_allowed_packet: raise that on the server") from None


def record_in(fields: Sequence[Any]) -> Record:
    """Return the record of a row's fields: times are microseconds, which are exact in a float of seconds."""
    values = list(fields)
    for at in _TIMES:
        if (time := values[at]) is not None:
            values[at] = time / 1e6
    return tuple.__new__(Record, values)


def reply_in(row: Row) -> Reply:
    """Return the reply of a row: whether it was won, the time, and the record or NULLs."""
    won, now, *fields = row
    if fields[0] is None:
        return Reply(False, None, now / 1e6)
    return tuple.__new__(Reply, (won == 1, record_in(fields), now / 1e6))


def size_of(write: Write) -> int:
    """Return about how many characters of SQL a write takes: two for each byte of UTF-8."""
    return sum(len(value) * (2 if value.isascii() else 8) for value in write if isinstance(value, str))


def number() -> int:
    """Return the id of a write."""
    return int.from_bytes(os.urandom(8), "big") >> 1
