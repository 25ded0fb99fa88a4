"""Values in a file that is only read. It is read again when it has changed."""

from abc import abstractmethod
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote

from onceward.core.urls import shown_url
from onceward.stores import url_parts


class FileValues:
    """Values in a file. Subclasses read it."""

    writes = False

    def __init__(self, url: str, folder: str) -> None:
        path = unquote(url_parts(url)[0].path)
        if not path:
            raise ValueError(f"{shown_url(url)!r}: name the file, as in {url_parts(url)[0].scheme}:prices.csv")
        self._file = Path(folder, path)
        self._seen: tuple[int, int] | None = None
        self._values: dict[str, Any] = {}
        self._lock = Lock()
        if not self._file.is_file():
            raise ValueError(f"{path}: there is no such file in {folder}")

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

    def set(self, key: str, value: Any, ttl: float | None) -> None:
        """Refuse it."""
        del value, ttl
        raise TypeError(f"{key}: {self._file} is only read")

    def add(self, key: str, member: Any, ttl: float | None) -> None:
        """Refuse it."""
        self.set(key, member, ttl)

    def close(self) -> None:
        """There is nothing to close."""
