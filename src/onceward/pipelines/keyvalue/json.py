"""Values in a JSON file with one object: ``json:prices.json``."""

from pathlib import Path
from typing import Any

import msgspec

from onceward.pipelines.keyvalue.contract import options_of
from onceward.pipelines.keyvalue.files import FileValues


class JsonValues(FileValues):
    """A file with an object, whose members are the values."""

    def __init__(self, url: str, space: str, folder: str) -> None:
        if space:
            raise ValueError("a file has no space:; leave it out")
        options_of(url, frozenset())
        super().__init__(url, folder)
        self.read(self._file)

    def read(self, file: Path) -> dict[str, Any]:
        """Return its members."""
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{file.name} is no JSON object: {error}") from error
