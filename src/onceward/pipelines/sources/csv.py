"""The source ``csv``."""

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.consumers.delivery import MalformedRecord
from onceward.pipe.lines import LONGEST, Line, Lines, Rejects
from onceward.pipelines.sources.csv_rows import MARK, Rows
from onceward.pipelines.sources.ndjson import LineSource, delivery_of, recorded

if TYPE_CHECKING:
    from onceward.pipelines.kit import Kit
    from onceward.pipelines.sources.lines import LineRecord


class CsvSource(LineSource, kw_only=True):
    """Rows of CSV as objects: the first line of each file names the fields, and all values are text."""

    separator: Annotated[str, Meta(description="The character between two values.", min_length=1, max_length=1)] = ","

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
            except (ValueError, csv.Error) as error:
                delivery.fault = MalformedRecord(f"not a row of CSV: {error}")
                rejects.add(row.data or b"")
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
