"""Appends lines to a file, each once per key, also after a crash of any writer.

The journal beside the file says what is in it. A batch writes its entries to the journal, then its lines to the file, and then
the word that they are there. What stands behind the last such word was left by a writer that died: its lines are cut off.
"""

import asyncio
import os
import threading
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from onceward.terminal import write_all

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    LOCKS = False
else:
    LOCKS = True

_WRITTEN: Final = b"written\n"


class KeyedLine(NamedTuple):
    """A line and the claim that brings it.

    Attributes:
        follows: whether an earlier attempt may have brought it. If not, what the journal has of the key is of an older record.
    """

    key: str
    data: bytes
    fence: int
    follows: bool = True


class Appender:
    """One file. Threads and processes share it.

    Attributes:
        waiting: lines that the next batch takes, each with the future of who waits for it.
        busy: whether a batch is being written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._journal = path, path.parent / f"{path.name}.onceward"
        self._lock = threading.Lock()
        self._fences: dict[bytes, int] = {}  # by key, of the claim that brought its last line
        self._read = 0  # bytes of the journal that are in _fences
        self.waiting: list[tuple[KeyedLine, asyncio.Future[None]]] = []
        self.busy = False

    def append(self, lines: list[KeyedLine]) -> None:
        """Append the lines whose keys are not in the file yet; return when they are on the disk.

        Raises:
            OSError: the file cannot be written. The lines may be in it: append them again.
        """
        with self._lock, self._journal.open("a+b", buffering=0) as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            with self._path.open("a+b", buffering=0) as file:
                self._catch_up(journal.fileno(), file.fileno())
                fresh = {line.key: line for line in lines if not self._has(line)}
                if not fresh:
                    return
                offset, entries = file.seek(0, os.SEEK_END), []
                if offset and os.pread(file.fileno(), 1, offset - 1) != b"\n":  # of another program
                    write_all(file.fileno(), b"\n")
                    offset += 1
                for line in fresh.values():
                    entries.append(f"{line.key} {offset} {line.fence}\n".encode())
                    offset += len(line.data)
                write_all(journal.fileno(), b"".join(entries))
                os.fsync(journal.fileno())  # before the lines: a line without its entry would be written again
                write_all(file.fileno(), b"".join(line.data for line in fresh.values()))
                os.fsync(file.fileno())
                write_all(journal.fileno(), _WRITTEN)
                os.fsync(journal.fileno())  # else a crash of the machine could cut off lines that are recorded
                self._fences.update((uuid.UUID(line.key).bytes, line.fence) for line in fresh.values())
                self._read = os.fstat(journal.fileno()).st_size

    def _has(self, line: KeyedLine) -> bool:
        fence = self._fences.get(uuid.UUID(line.key).bytes)
        return fence is not None and (line.follows or fence == line.fence)

    def _catch_up(self, journal: int, file: int) -> None:
        """Read what other writers have appended, and cut off what one that died has left."""
        size = os.fstat(journal).st_size
        if size < self._read:  # somebody has removed it
            self._fences.clear()
            self._read = 0
        data = os.pread(journal, size - self._read, self._read)
        end = data.rfind(b"\n" + _WRITTEN) + 1 + len(_WRITTEN) if b"\n" + _WRITTEN in data else 0
        for entry in data[:end].splitlines():
            if entry != _WRITTEN.strip():
                key, _, fence = entry.decode().split()
                self._fences[uuid.UUID(key).bytes] = int(fence)
        self._read += end
        left = data[end:].partition(b"\n")[0].split()
        if data[end:]:
            is_whole = b"\n" in data[end:] and len(left) == 3 and left[1].isdigit()
            if is_whole and os.fstat(file).st_size > int(left[1]):
                os.ftruncate(file, int(left[1]))
                os.fsync(file)
            os.ftruncate(journal, self._read)
