"""The source ``csv``: rows with the lines that they stand in, because a quoted value can take several."""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import Annotated

from msgspec import Meta

from onceward.consumers.delivery import MalformedRecord
from onceward.pipe.lines import LONGEST, Line, Lines, Rejects, Spill
from onceward.pipelines.kit import Kit
from onceward.pipelines.sources.lines import LineDelivery, LineSource

MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8


def rows(lines: Iterable[Line], separator: str, spill: Spill) -> Iterator[Line]:
    """Yield each row as one line. A row that is too long for memory has no data, and goes to ``spill``.

    A quote within a value, as in 5" pipe, opens nothing.
    """
    for _, group in groupby(lines, attrgetter("file")):
        of_file = iter(group)
        for first in of_file:
            is_line = first.data is None or b'"' not in first.data
            yield first if is_line else _row(first, of_file, separator, spill)


def _row(first: Line, others: Iterator[Line], separator: str, spill: Spill) -> Line:
    """Return a row with as many lines as csv asks for in the middle of a value."""
    lines, pieces = chain((first,), others), list[bytes]()
    size = quotes = 0
    is_lost = False

    def more() -> bytes | None:
        nonlocal size, quotes, is_lost
        line = next(lines, None)
        data = None if line is None else line.data
        if data is not None:
            size, quotes = size + len(data), quotes + data.count(b'"')
            pieces.append(data)
        if size > LONGEST or (line is not None and data is None):
            is_lost = True
            spill(b"".join(pieces))
            pieces.clear()
        return data

    def texts() -> Iterator[str]:
        while not is_lost and (data := more()) is not None:
            yield data.removeprefix(MARK).decode(errors="replace")

    try:
        next(csv.reader(texts(), delimiter=separator, strict=True), None)
    except csv.Error as error:
        while (is_lost or "field limit" in str(error)) and quotes % 2 and more() is not None:
            pass  # csv reads no such value, and its lines must not become rows
    return first._replace(data=None if is_lost else b"".join(pieces))


class CsvSource(LineSource, kw_only=True):
    """Rows of CSV as objects: the first line of each file names the fields, and all values are text.

    A last line without a line break is malformed, because its writer may not have finished the line.

    Attributes:
        separator: The character between two values.
    """

    separator: Annotated[str, Meta(min_length=1, max_length=1)] = ","

    def check(self, kit: "Kit") -> None:
        super().check(kit)
        if self.separator in '"\r\n':
            kit.mistake("separator", "give another character than a quote or the end of a line")

    def records(self, lines: Lines, rejects: Rejects) -> Iterator[LineDelivery]:
        names: list[str] = []
        file = None
        for row in rows(lines, self.separator, rejects.add):
            if row.file != file:
                names, file = self._names(row), row.file
                continue
            if row.data is not None and not row.data.strip() and self.separator.encode() not in row.data:
                continue
            delivery = LineDelivery("csv", row)
            try:
                values = self._values(row)
                if len(values) != len(names):
                    raise ValueError(f"{len(values)} values, and the first line names {len(names)} fields")
                if row.data is not None and not row.data.endswith(b"\n"):
                    raise ValueError("it may be cut off: if it is complete, end it with a line break")
            except (ValueError, csv.Error) as error:
                delivery.fault = MalformedRecord(f"not a row of CSV: {error}")
                if row.data is not None:
                    rejects.add(row.data.removesuffix(b"\n") + b"\n")
            else:
                delivery.data = dict(zip(names, values, strict=True))
            yield delivery

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
        return next(csv.reader([text], delimiter=self.separator, strict=True), [])
