"""The source ``csv``: rows with the lines that they stand in, because a quoted value can take several."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta

from onceward.consumers.delivery import MalformedRecord
from onceward.pipe.lines import LONGEST, Line, Lines, Rejects, Spill
from onceward.pipelines.kit import Kit
from onceward.pipelines.sources.lines import LineRecord, LineSource, delivery_of, recorded

MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8


class Rows:
    """Yields each row as one line. A row that is too long for memory has no data, and goes to ``spill``.

    A quote within a value, as in 5" pipe, opens nothing.
    """

    def __init__(self, lines: Iterable[Line], separator: str, spill: Spill) -> None:
        self._lines, self._separator, self.spill = iter(lines), separator, spill
        self._back: Line | None = None

    def __iter__(self) -> Iterator[Line]:
        while (first := self.take()) is not None:
            yield first if first.data is None or b'"' not in first.data else self._row(first, first.data)

    def take(self) -> Line | None:
        """Return the next line; None at the end."""
        line, self._back = self._back or next(self._lines, None), None
        return line

    def give_back(self, line: Line) -> None:
        """Let a line be taken again."""
        self._back = line

    def _row(self, first: Line, data: bytes) -> Line:
        row = _Row(self, first, data)
        reader = csv.reader(row.texts(), delimiter=self._separator, strict=True)
        try:
            while True:
                row.begins = True
                next(reader)
        except StopIteration:
            pass
        except csv.Error as error:
            if row.is_long or "field limit" in str(error):
                row.skip()  # csv reads no such value, and its lines must not become rows
        return row.line


class _Row:
    """One row. It takes a further line only if csv asks for one in the middle of a value.

    Attributes:
        begins: whether csv has taken nothing since it gave the last row.
    """

    def __init__(self, rows: Rows, first: Line, data: bytes) -> None:
        self._rows, self._first = rows, first
        self._pieces, self._size, self._quotes = [data], len(data), data.count(b'"')
        self._is_lost = False
        self.begins = True

    @property
    def is_long(self) -> bool:
        """Whether it is too long for memory."""
        return self._size > LONGEST

    @property
    def line(self) -> Line:
        """The row as one line."""
        return self._first._replace(data=None if self._is_lost else b"".join(self._pieces))

    def texts(self) -> Iterator[str]:
        """Yield the text of its lines."""
        data: bytes | None = self._pieces[0].removeprefix(MARK)
        while data is not None:
            for text in io.StringIO(data.decode(errors="replace"), newline=""):
                self.begins = False
                yield text
            if self.begins or self.is_long:
                return
            data = self._more()

    def skip(self) -> None:
        """Take the lines up to the next quote that has no other."""
        while self._quotes % 2 and self._more() is not None:
            pass

    def _more(self) -> bytes | None:
        line = self._rows.take()
        if line is None:
            return None
        if line.file != self._first.file:
            self._rows.give_back(line)
            return None
        if line.data is None:
            self._lose()
            return None
        self._size += len(line.data)
        self._quotes += line.data.count(b'"')
        self._pieces.append(line.data)
        if self.is_long:
            self._lose()
        return line.data

    def _lose(self) -> None:
        self._rows.spill(b"".join(self._pieces))
        self._pieces, self._is_lost = [], True


class CsvSource(LineSource, kw_only=True):
    """Rows of CSV as objects: the first line of each file names the fields, and all values are text.

    A last line without a line break is malformed: its writer can be in the middle of it, or have died there.

    Attributes:
        separator: The character between two values.
    """

    separator: Annotated[str, Meta(min_length=1, max_length=1)] = ","

    def check(self, kit: "Kit") -> None:
        super().check(kit)
        if self.separator in '"\r\n':
            kit.mistake("separator", "give another character than a quote or the end of a line")

    def records(self, lines: Lines, rejects: Rejects) -> "Iterator[LineRecord]":
        names: list[str] = []
        file = None
        for row in Rows(lines, self.separator, rejects.add):
            if row.file != file:
                names, file = self._names(row), row.file
                continue
            if row.data is not None and not row.data.strip():
                continue
            delivery = delivery_of("csv", row)
            try:
                values = self._values(row)
                if len(values) != len(names):
                    raise ValueError(f"{len(values)} values, and the first line names {len(names)} fields")
                if row.data is not None and not row.data.endswith(b"\n"):
                    raise ValueError("it can be cut: if it is whole, end it with a line break")
            except (ValueError, csv.Error) as error:
                delivery.fault = MalformedRecord(f"not a row of CSV: {error}")
                if row.data is not None:
                    rejects.add(row.data.removesuffix(b"\n") + b"\n")
            else:
                delivery.data = dict(zip(names, values, strict=True))
            yield recorded(delivery, row)

    def _names(self, row: Line) -> list[str]:
        try:
            names = self._values(row)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{row.file}: its first line, which names the fields, is not CSV: {error}") from error
        if len(set(names)) < len(names):
            raise ValueError(f"{row.file}: its first line names a field twice: {', '.join(names)}")
        return names

    def _values(self, row: Line) -> list[str]:
        """Return the values of a row; raises ValueError or csv.Error."""
        if row.data is None:
            raise ValueError(f"longer than {LONGEST} bytes")
        text = row.data.removeprefix(MARK).decode()
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=self.separator, strict=True) if row]
        if len(rows) > 1:
            raise ValueError("a carriage return alone ends no row: let its lines end with LF or CRLF")
        return rows[0] if rows else []
