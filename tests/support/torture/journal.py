"""What happened, one line of JSON for each event, written by one append so that a kill cannot tear it."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


def now() -> float:
    """Return seconds on the clock that all processes of the machine share and nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Journal:
    """Appends events to a file; safe in signal handlers and trace functions."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, what: str, **more: object) -> None:
        event = {"what": what, "pid": os.getpid(), "t": now(), **more}
        os.write(self._file, json.dumps(event, default=repr).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def events(path: Path) -> Iterator[dict]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)
