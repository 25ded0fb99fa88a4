"""Appends lines to a file, each once per key, also after a crash of any writer.

The journal beside the file says what is in it. A batch writes its entries to the journal, then its lines to the file, and then
the word that they are there. What stands behind the last such word was left by a writer that died: its lines are cut off.
"""

import asyncio
import os
import threading
import uuid
from pathlib import Path
from typing import Final

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    LOCKS = False
else:
    LOCKS = True

_WRITTEN: Final = b"written\n"


class Appender:
    """One file. Threads and processes share it.

    Attributes:
        waiting: lines that the next batch takes: key, line, and the future of who waits for it.
        busy: whether a batch is being written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._journal = path, path.with_name(f"{path.name}.onceward")
        self._lock = threading.Lock()
        self._keys: set[bytes] = set()
        self._read = 0  # bytes of the journal that are in _keys
        self.waiting: list[tuple[str, bytes, asyncio.Future[None]]] = []
        self.busy = False

    def append(self, lines: list[tuple[str, bytes]]) -> None:
        """Append the lines whose keys are not in the file yet; return when they are on the disk.

        Raises:
            OSError: the file cannot be written. The lines may be in it: append them again.
        """
        with self._lock, self._journal.open("a+b", buffering=0) as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            with self._path.open("ab", buffering=0) as file:
                self._catch_up(journal.fileno(), file.fileno())
                fresh = {key: line for key, line in lines if uuid.UUID(key).bytes not in self._keys}
                if not fresh:
                    return
                offset, entries = file.seek(0, os.SEEK_END), []
                for key, line in fresh.items():
                    entries.append(f"{key} {offset}\n".encode())
                    offset += len(line)
                _write(journal.fileno(), b"".join(entries))
                os.fsync(journal.fileno())  # before the lines: a line without its entry would be written again
                _write(file.fileno(), b"".join(fresh.values()))
                os.fsync(file.fileno())
                _write(journal.fileno(), _WRITTEN)
                os.fsync(journal.fileno())  # else a crash of the machine could cut off lines that are recorded
                self._keys.update(uuid.UUID(key).bytes for key in fresh)
                self._read = os.fstat(journal.fileno()).st_size

    def _catch_up(self, journal: int, file: int) -> None:
        """Read what other writers have appended, and cut off what one that died has left."""
        size = os.fstat(journal).st_size
        if size < self._read:  # somebody has removed it
            self._keys.clear()
            self._read = 0
        data = os.pread(journal, size - self._read, self._read)
        end = data.rfind(b"\n" + _WRITTEN) + 1 + len(_WRITTEN) if b"\n" + _WRITTEN in data else 0
        for entry in data[:end].splitlines():
            if entry != _WRITTEN.strip():
                self._keys.add(uuid.UUID(entry.split()[0].decode()).bytes)
        self._read += end
        left = data[end:].partition(b"\n")[0].split()
        if data[end:]:
            is_whole = b"\n" in data[end:] and len(left) == 2 and left[1].isdigit()
            if is_whole and os.fstat(file).st_size > int(left[1]):
                os.ftruncate(file, int(left[1]))
                os.fsync(file)
            os.ftruncate(journal, self._read)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
