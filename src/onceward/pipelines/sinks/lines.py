"""The sinks ``file`` and ``stdout``."""

import os
import threading
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec

from onceward.claim.held import HeldClaim
from onceward.core.attempts import attempts_of
from onceward.pipelines.call import PipelineCall, PipelineMessage, text_of
from onceward.pipelines.kit import Kit, SinkAction, SinkSettings
from onceward.pipelines.settings import Text
from onceward.terminal import write_all

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    LOCKS = False
else:
    LOCKS = True

_WRITTEN: Final = b"written\n"
_BEGINNING: Final = 64  # bytes of a journal that tell it from another one: a key, and more


class KeyedLine(NamedTuple):
    """A line and the claim that brings it.

    Attributes:
        first: the least fence of this record's attempts. If the journal has a smaller one, that line is of an older record.
    """

    key: str
    data: bytes
    fence: int
    first: int = 0


class Appender:
    """One file, in which each line stands once per key, also after a crash of any writer. Threads and processes share it.

    The journal beside the file says what is in it. A batch writes its entries to the journal, then its lines to the
    file, and then the word that they are there. What stands behind the last such word was left by a writer that died:
    its lines are cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._journal = path, path.parent / f"{path.name}.onceward"
        self._lock = threading.RLock()
        self._fences: dict[str, int] = {}  # by key, of the claim that brought its last line
        self._read = 0  # bytes of the journal that are in _fences
        self._beginning = b""  # of that journal
        self._waiting: list[KeyedLine] = []

    def add(self, line: KeyedLine) -> None:
        """Append a line, with all others that wait, so that they share one write to the disk. Its errors are those of :meth:`append`."""
        self._waiting.append(line)
        with self._lock:
            if self._fences.get(line.key) != line.fence:  # else another thread has just written it
                waiting, self._waiting = self._waiting, []
                self.append([line, *waiting])

    def append(self, lines: list[KeyedLine]) -> None:
        """Append the lines whose keys are not in the file yet; return when they are on the disk.

        Raises:
            OSError: the file cannot be written. The lines may be in it: append them again.
        """
        with self._lock, self._journal.open("a+b", buffering=0) as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            with self._path.open("a+b", buffering=0) as file:
                self._catch_up(journal.fileno(), file.fileno())
                fresh = {line.key: line for line in lines if self._fences.get(line.key, -1) < line.first}
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
                self._fences |= {line.key: line.fence for line in fresh.values()}
                self._note(journal.fileno(), os.fstat(journal.fileno()).st_size)

    def _note(self, journal: int, read: int) -> None:
        self._read, self._beginning = read, os.pread(journal, min(read, _BEGINNING), 0)

    def _catch_up(self, journal: int, file: int) -> None:
        """Read what other writers have appended, and cut off what one that died has left."""
        size = os.fstat(journal).st_size
        if (
            size < self._read or os.pread(journal, len(self._beginning), 0) != self._beginning
        ):  # somebody has removed it
            self._fences.clear()
            self._read = 0
        data = os.pread(journal, size - self._read, self._read)
        end = data.rfind(b"\n" + _WRITTEN) + 1 + len(_WRITTEN) if b"\n" + _WRITTEN in data else 0
        for entry in data[:end].splitlines():
            if entry != _WRITTEN.strip():
                key, _, fence = entry.decode().split()
                self._fences[key] = int(fence)
        self._note(journal, self._read + end)
        word = data[end:].partition(b"\n")[0].split()
        if data[end:]:
            is_whole = b"\n" in data[end:] and len(word) == 3 and word[1].isdigit()
            if is_whole and os.fstat(file).st_size > int(word[1]):
                os.ftruncate(file, int(word[1]))
                os.fsync(file)
            os.ftruncate(journal, self._read)


class FileSink(SinkSettings):
    """Append messages to a file, each as a line, and each once.

    A text without a line break is written unchanged, everything else as JSON. The file ``FILE.onceward`` lists the keys
    of the written lines. So no line is written again after a crash. Delete both files together. Several processes of
    one machine can write to one file.

    Attributes:
        path: The file. A relative path begins at the folder of this file.
    """

    path: Text

    def build(self, kit: "Kit") -> SinkAction:
        if not LOCKS:
            kit.mistake("", "the sink file needs the file locks of Linux or macOS, which this system does not have")
        path = kit.folder
        with kit.noting("path", OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
            path = (kit.folder / self.path).resolve()  # writers by other names share its journal
            if path.is_dir() or not path.parent.is_dir():
                raise ValueError(f"{path}: a directory, or its folder does not exist")
        appender = Appender(path)

        async def write(message: PipelineMessage, call: "PipelineCall") -> None:
            claim = cast("HeldClaim", call.claim)
            line = KeyedLine(call.key(), line_of(message.data), *_fences(claim))
            await call.record(PipelineCall.thread, call, appender.add, line)

        return write


def _fences(claim: HeldClaim) -> tuple[int, int]:
    """Return the fence of a line's claim, and the least one of its record's attempts.

    Neither is less than the time when the record began: one that follows an expired record has the fences after that one's.
    """
    began, first = claim.record.created_at, attempts_of(claim.record, claim.store_time())[0]
    least = int(began * 1e6)
    # After an unpark, and in a history that is full, the first one that is known began later.
    is_first = first.number == 1 and first.begin is not None and round(first.begin * 1000) == round(began * 1000)
    return max(claim.fence, least), max(first.fence, least) if is_first else least


def line_of(value: object) -> bytes:
    """Return a value as one line: a text as it is, all else as JSON. A text with a line break is JSON, too."""
    is_line = isinstance(value, str) and "\n" not in value and "\r" not in value
    return (text_of(value).encode() if is_line else msgspec.json.encode(value)) + b"\n"


class StdoutSink(SinkSettings):
    """Print messages as lines of JSON.

    What a message prints is recorded with its key. A duplicate prints it again, so that a second run prints the whole output.
    Within `retry`, nothing can be printed.
    """

    def build(self, kit: "Kit") -> SinkAction:
        if kit.around:
            kit.mistake("", f"what is printed within {kit.around!r} is not recorded with it: print after it")

        async def write(message: PipelineMessage, call: "PipelineCall") -> None:
            call.printed.append(message.data)

        return write
