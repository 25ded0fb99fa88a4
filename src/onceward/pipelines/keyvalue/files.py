"""Values in a file that is only read: ``csv:prices.csv?key=sku&value=price`` and ``json:prices.json``. It is read again when it has changed."""

import csv
from abc import abstractmethod
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote

import msgspec

from onceward.core.urls import shown_url
from onceward.pipelines.keyvalue import Values, options_of
from onceward.stores import url_parts


class FileValues(Values):
    """Values in a file. Subclasses read it."""

    writes = False

    known: frozenset[str] = frozenset()  # options of the URL

    def __init__(self, url: str, space: str, folder: str) -> None:
        if space:
            raise ValueError("a file has no space:; leave it out")
        options = options_of(url, self.known)
        self._key, self._value = options.get("key"), options.get("value")
        path = unquote(url_parts(url)[0].path)
        if not path:
            raise ValueError(f"{shown_url(url)!r}: name the file, as in {url_parts(url)[0].scheme}:prices.csv")
        self._file = Path(folder, path)
        self._seen: tuple[int, int] | None = None
        self._values: dict[str, Any] = {}
        self._lock = Lock()
        if not self._file.is_file():
            raise ValueError(f"{path}: there is no such file in {folder}")
        self.read(self._file)

    @abstractmethod
    def read(self, file: Path) -> dict[str, Any]:
        """Return all values of the file; raises ValueError if it cannot be read."""

    def get(self, key: str) -> Any:
        """Return the value of a key, or None."""
        with self._lock:
            status = self._file.stat()
            seen = status.st_mtime_ns, status.st_size
            if seen != self._seen:
                self._values, self._seen = self.read(self._file), seen
        return self._values.get(key)


class CsvValues(FileValues):
    """A file with a header. ``key`` is the column of the key, by default the first; ``value`` the one of the value, by default all."""

    known = frozenset({"key", "value"})

    def read(self, file: Path) -> dict[str, Any]:
        """Return the rows by key; of two rows with a key the last one."""
        try:
            with file.open(newline="", encoding="utf-8-sig") as lines:
                return self._read(csv.DictReader(lines), file.name)
        except csv.Error as error:
            raise ValueError(f"{file.name} is not CSV: {error}") from error

    def _read(self, rows: "csv.DictReader[str]", name: str) -> dict[str, Any]:
        header = rows.fieldnames
        if not header:
            raise ValueError(f"{name} has no header")
        for column in (self._key, self._value):
            if column is not None and column not in header:
                raise ValueError(f"{name} has no column {column!r}; there are {', '.join(header)}")
        key, values = self._key or header[0], {}
        for row in rows:
            if None in row or None in row.values():
                raise ValueError(f"{name}: line {rows.line_num} has more or fewer values than the header has columns")
            values[row[key]] = row if self._value is None else row[self._value]
        return values


class JsonValues(FileValues):
    """A file with an object, whose members are the values."""

    def read(self, file: Path) -> dict[str, Any]:
        """Return its members."""
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{file.name} is not a JSON object: {error}") from error
