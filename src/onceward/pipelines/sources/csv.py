"""The source ``csv``: rows as objects, each with the line that it begins at."""

import csv
from collections.abc import Iterable, Iterator
from itertools import count, groupby
from typing import Annotated

from msgspec import Meta

from onceward.consumers.delivery import MalformedRecord
from onceward.pipe.lines import Line
from onceward.pipelines.sources.lines import LineDelivery, NdjsonSource


class CsvSource(NdjsonSource, kw_only=True):
    """Rows of CSV as objects: the first row of each file names the fields, and all values are text.

    A row with wrong quotes, or with more or fewer values than the first, is malformed; the others go on. A last row
    without a line break is malformed, too, because its writer may not have finished it.

    Attributes:
        separator: The character between two values.
    """

    separator: Annotated[str, Meta(pattern='^[^"\r\n]$')] = ","

    def deliveries(self, lines: Iterable[Line]) -> Iterator[LineDelivery]:
        place = count()
        for _, of_file in groupby(lines, lambda line: next(place) - line.number):
            rows = self._rows(of_file)
            names = self._names(next(rows, None))
            for row in rows:
                delivery = LineDelivery("csv", row)
                try:
                    values = self._values(row)
                    if len(values) != len(names):
                        raise ValueError(f"{len(values)} values, and the first row names {len(names)} fields")
                    delivery.data = dict(zip(names, values, strict=True))
                except ValueError as error:
                    delivery.fault = MalformedRecord(f"not a row of CSV: {error}")
                yield delivery

    def _rows(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield each row as one line, because a quoted value can take several. Of wrong quotes it finds the end, too."""
        taken: list[Line] = []

        def texts() -> Iterator[str]:
            for line in lines:
                taken.append(line)
                yield line.data.decode("utf-8-sig", errors="replace").replace("\r", "")

        try:
            for values in csv.reader(texts(), delimiter=self.separator):
                if values:
                    yield taken[0]._replace(data=b"".join(line.data for line in taken))
                taken.clear()
        except csv.Error as error:
            raise OSError(
                f"{taken[0].file}: line {taken[0].number}: {error}: close its quotes, or take it out"
            ) from error

    def _names(self, row: Line | None) -> list[str]:
        if row is None:
            return []  # of an empty file
        try:
            names = self._values(row)
            if len(set(names)) < len(names):
                raise ValueError("a field is there twice")
        except ValueError as error:
            raise ValueError(f"{row.file}: its first row, which names the fields: {error}") from error
        return names

    def _values(self, row: Line) -> list[str]:
        """Return the values of a row; raises ValueError."""
        if not row.data.endswith(b"\n"):
            raise ValueError("it may be cut off: if it is complete, end it with a line break")
        try:
            return next(csv.reader([row.data.decode("utf-8-sig")], delimiter=self.separator, strict=True))
        except csv.Error as error:
            raise ValueError(str(error)) from error
