"""The source ``csv``."""

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from onceward.consumers.delivery import MalformedRecord
from onceward.pipe.lines import LONGEST, Line, Lines, Rejects
from onceward.pipelines.sources.ndjson import LineSource, delivery_of, recorded

if TYPE_CHECKING:
    from onceward.pipelines.kit import Kit
    from onceward.pipelines.sources.lines import LineRecord

_MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8


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
        for row in self._rows(lines):
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
        text = row.data.removeprefix(_MARK).decode()
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=self.separator, strict=True) if row]
        if len(rows) > 1:
            raise ValueError("a carriage return alone ends no row: let its lines end with LF or CRLF")
        return rows[0] if rows else []

    def _rows(self, lines: Lines) -> Iterator[Line]:
        """Yield each row as one line: a quoted value can take several."""
        row: Line | None = None
        for line in lines:
            if row is not None and line.file != row.file:
                yield row
                row = None
            if row is None:
                row = line
            elif row.data is not None:
                data = None if line.data is None or len(row.data) > LONGEST else row.data + line.data
                row = row._replace(data=data)
            if row is not line and line.data is not None and b'"' not in line.data:
                continue  # nothing closes the quoted value
            if row.data is None or self._is_whole(row.data):
                yield row
                row = None
        if row is not None:
            yield row

    def _is_whole(self, data: bytes) -> bool:
        """Tell whether a row ends here. A quote within a value, as in 5" pipe, opens nothing."""
        if b'"' not in data:
            return True
        text = io.StringIO(data.removeprefix(_MARK).decode(errors="replace"), newline="")
        try:
            for _ in csv.reader(text, delimiter=self.separator, strict=True):
                pass
        except csv.Error as error:
            if "field limit" in str(error):  # csv reads no such value, and its lines must not become rows
                return data.count(b'"') % 2 == 0
            return "unexpected end of data" not in str(error)
        return True
