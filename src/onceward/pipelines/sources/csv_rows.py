"""Rows of CSV with the lines that they stand in: a quoted value can take several."""

import csv
import io
from collections.abc import Iterable, Iterator

from onceward.pipe.lines import LONGEST, Line, Spill

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
