"""Values in a file that is only read: ``json:prices.json``. It is read again when it has changed."""

from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote

import msgspec

from onceward.pipelines.keyvalue import Values, options_of
from onceward.stores import url_parts


class JsonValues(Values):
    """A file with an object, whose members are the values."""

    writes = False

    def __init__(self, url: str, space: str, folder: str) -> None:
        if space:
            raise ValueError("a file has no space:; leave it out")
        options_of(url, frozenset())
        self._file = Path(folder, unquote(url_parts(url)[0].path))
        self._seen: tuple[int, int] | None = None
        self._values: dict[str, Any] = {}
        self._lock = Lock()
        self.get("")  # so that a file that cannot be read is told before anything runs

    def get(self, key: str) -> Any:
        """Return the value of a key, or None."""
        with self._lock:
            status = self._file.stat()
            seen = status.st_mtime_ns, status.st_size
            if seen != self._seen:
                try:
                    self._values = msgspec.json.decode(self._file.read_bytes(), type=dict[str, Any])
                except msgspec.MsgspecError as error:
                    raise ValueError(f"{self._file.name} is not a JSON object: {error}") from error
                self._seen = seen
        return self._values.get(key)
