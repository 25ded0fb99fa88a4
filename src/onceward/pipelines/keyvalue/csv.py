"""Values in a CSV file: ``csv:prices.csv?key=sku&value=price``."""

import csv
from pathlib import Path
from typing import Any, Final

from onceward.pipelines.keyvalue.contract import options_of
from onceward.pipelines.keyvalue.files import FileValues

_OPTIONS: Final = frozenset({"key", "value"})


class CsvValues(FileValues):
    """A file with a header. ``key`` is the column of the key, by default the first; ``value`` the one of the value, by default all."""

    def __init__(self, url: str, space: str, folder: str) -> None:
        if space:
            raise ValueError("a file has no space:; leave it out")
        options = options_of(url, _OPTIONS)
        self._key, self._value = options.get("key"), options.get("value")
        super().__init__(url, folder)
        self.read(self._file)

    def read(self, file: Path) -> dict[str, Any]:
        """Return the rows by key; of two rows with a key the last one."""
        try:
            with file.open(newline="", encoding="utf-8-sig") as lines:
                return self._read(csv.DictReader(lines), file.name)
        except csv.Error as error:
            raise ValueError(f"{file.name} is no CSV: {error}") from error

    def _read(self, rows: "csv.DictReader[str]", name: str) -> dict[str, Any]:
        header = rows.fieldnames
        if not header:
            raise ValueError(f"{name} has no header")
        for column in (self._key, self._value):
            if column is not None and column not in header:
                raise ValueError(f"{name} has no column {column!r}; there are {', '.join(header)}")
        key, found = self._key or header[0], {}
        for row in rows:
            if None in row or None in row.values():
                raise ValueError(f"{name}: line {rows.line_num} has more or fewer values than the header has columns")
            found[row[key]] = row if self._value is None else row[self._value]
        return found
