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
        with self._file.open(newline="", encoding="utf-8") as file:
            header = csv.DictReader(file).fieldnames or []
        for column in (self._key, self._value):
            if column is not None and column not in header:
                raise ValueError(f"{self._file.name} has no column {column!r}; there are {', '.join(header)}")
        if not header:
            raise ValueError(f"{self._file.name} has no header")

    def read(self, file: Path) -> dict[str, Any]:
        """Return the rows by key; of two rows with a key the last one."""
        with file.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            key = self._key or (rows.fieldnames or [""])[0]
            return {row[key]: row if self._value is None else row[self._value] for row in rows}
