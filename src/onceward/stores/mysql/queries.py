"""The requests of a MySQL ledger: the statements of each, and how their rows become a reply.

The statements depend on the server, which is known only when the first connection is open. So a request makes them when it is sent.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final
from zlib import crc32

import msgspec

from onceward.core.record import Record, Reply, Write
from onceward.core.selections import DueWithin, Selection
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.mysql.schema import MysqlNames
from onceward.stores.mysql.statements import (
    STARTED,
    MysqlStatements,
    literal,
    microseconds,
    packed,
)
from onceward.stores.sql.columns import TIMES
from onceward.stores.sql.exchange import BatchReply, Row, SqlQuery
from onceward.stores.sql.finding import Dialect, PageReader, page_of

DIALECT: Final = Dialect(STARTED, f"({STARTED} - {{}} * 1000000)")
_TIMES = [Record._fields.index(name) for name in TIMES]


class MysqlQuery(SqlQuery):
    """A request.

    Attributes:
        patience: seconds to wait for somebody's open transaction on the key; MySQL waits as the session does.
    """

    blocks = True  # whether its statements can be sent as one
    patience = 0  # the server counts whole seconds

    @abstractmethod
    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements, to be sent one after another on one connection."""


class MysqlWrite(MysqlQuery):
    """The insert of one key, or the swap of the record ``seen``."""

    def __init__(self, write: Write, fence: int, seen: Record | None) -> None:
        self.kind = self.action = "insert" if seen is None else "swap"
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
        is_written, mine = row[0] == 1, row[1] == 1
        if is_written and not mine:
            return None
        return reply_in((is_written, *row[2:])) if row[3] is not None else Reply(False, None, row[2] / 1e6)


class MysqlWrites(MysqlQuery):
    """The inserts or the swaps of many keys."""

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

    def reply(self, rows: Sequence[Row]) -> BatchReply:
        entries = unpacked(rows)
        return BatchReply({row[2]: reply_in(row) for row in entries if row[2] is not None}, entries[-1][1] / 1e6)


class KeyQuery(MysqlQuery):
    """Read the record of a key, or delete the one that was ``seen``."""

    def __init__(self, key: str, seen: Record | None = None) -> None:
        super().__init__("load" if seen is None else "delete")
        self._key, self._seen = key, seen

    def texts(self, statements: MysqlStatements) -> list[str]:
        if self._seen is None:
            return statements.load(self._key, self.patience)
        return statements.delete(self._seen, self.patience)

    def reply(self, rows: Sequence[Row]) -> Reply:
        ((is_deleted, _, now, *fields),) = unpacked(rows)
        held = None if fields[0] is None else record_in(fields)
        return Reply(True, self._seen, now / 1e6) if is_deleted else Reply(False, held, now / 1e6)


class MysqlReader(PageReader):
    """Values are printed."""

    within: ClassVar[Mapping[str, str]] = {"open": "unfinished = 1", "due": "due_at IS NOT NULL"}
    names: MysqlNames

    def text(self, value: str) -> str:
        return literal(value)

    def time(self, seconds: float) -> str:
        return str(microseconds(seconds))

    def of_chain(self, start: str) -> str:
        return f"t.root = {crc32(start.encode())} AND left(t.origin, {len(start)}) = {literal(start)}"

    def hint(self, index: str) -> str:
        return "" if index == "origin" else self.names.hint(index)

    def select(self, *terms: str) -> str:
        return packed(*terms)


class RowsQuery(MysqlQuery):
    """Statements whose reply is their rows. Those about the schema are also sent before the server is known."""

    blocks = False

    def __init__(self, *texts: str, action: str = "schema") -> None:
        super().__init__(action)
        self.is_bare = action == "schema"
        self._texts = list(texts)

    def texts(self, statements: MysqlStatements) -> list[str]:
        return self._texts


class MysqlPage(RowsQuery):
    """One page of records."""

    def __init__(
        self, names: MysqlNames, selection: Selection, after: str | None, limit: int, index: str | None
    ) -> None:
        reader = MysqlReader(names.table, DIALECT)
        reader.names = names
        super().__init__(reader.statement(selection, after, limit, index), action="select")
        self._selection, self._limit = selection, limit

    def reply(self, rows: Sequence[Row]) -> Page:
        entries = unpacked(rows)
        for row in entries:
            row[0] /= 1e6
            if row[3] is not None:
                row[3:] = record_in(row[3:])
        if isinstance(self._selection, DueWithin) and entries[0][1] is not None:
            entries[0][1] /= 1e6
        return page_of(self._selection, self._limit, entries)


class LongQuery(RowsQuery):
    """Statements that can take hours."""

    seconds = 86400.0


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
