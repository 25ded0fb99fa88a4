"""NDJSON streams as lines with their file and number, in constant memory; and the file of those that were rejected."""

import io
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from onceward.consumers.stop import Stop
from onceward.keys.paths import fixed
from onceward.terminal import readable, write_all

LINE: Final = fixed("line", "the parsed line")  # what key paths and a command's arguments begin with
STDIN = "-"
LONGEST = 16 * 1024 * 1024  # bytes of a line that is taken into memory
_CHUNK = 256 * 1024


class Line(NamedTuple):
    """One line with its end, as it stands in the input."""

    file: str
    number: int
    data: bytes


class Lines:
    """The lines of all ``files`` in their order, until ``stop``."""

    def __init__(self, files: Sequence[str], stop: Stop) -> None:
        self._files, self._stop = files, stop

    def __iter__(self) -> Iterator[Line]:
        """Yield each line; raises OSError when a file cannot be read, or has a line that is too long."""
        for name in self._files:
            with io.BufferedReader(_Stream(name, self._stop), _CHUNK) as stream:
                label, number = os.fsencode(name).decode(errors="replace"), 0
                while data := stream.readline(LONGEST + 1):
                    if self._stop.asked:
                        return
                    number += 1
                    if len(data) > LONGEST:
                        raise OSError(f"{label}: line {number} takes more than {LONGEST} bytes: take it out")
                    yield Line(label, number, data)


class Rejects:
    """Appends malformed lines to the file ``path``, which is opened with the first of them. None keeps none."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._fd = -1

    def add(self, data: bytes) -> None:
        """Append a line."""
        if self._path is None:
            return
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        write_all(self._fd, data.removesuffix(b"\n") + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Stream(io.RawIOBase):
    """A file that seems to end when this process is told to stop."""

    def __init__(self, name: str, stop: Stop) -> None:
        self._fd = os.dup(0) if name == STDIN else os.open(name, os.O_RDONLY)
        self._stop = stop
        status = os.fstat(self._fd)
        self._waits = not stat.S_ISREG(status.st_mode)
        self._remaining = 0 if self._waits else status.st_size - os.lseek(self._fd, 0, os.SEEK_CUR)  # bytes, at least

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # io's own is wider
        if self._stop.asked:
            return 0
        if self._waits and self._stop.wake in readable(self._fd, self._stop.wake):
            return 0
        count = os.readv(self._fd, [buffer])
        self._remaining -= count
        if not count and self._remaining > 0:
            raise OSError("became shorter while it was read: lines can be missing, or cut in two")
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()
