"""What a command writes: kept for the record, and passed on. A reader that stands still does not hold up the record."""

import base64
import os
import select
import threading
from collections import deque
from typing import Final, NamedTuple

import msgspec

from onceward.terminal import write_all

KEPT: Final = 65_536  # bytes of each stream that are recorded, at its end
_AT_MOST: Final = 32  # reads of 64 KiB; a Linux pipe holds up to 1 MiB (pipe(7))
_LOOK: Final = 100  # milliseconds between two looks at a pipe that a process left behind keeps open


class CommandStream(NamedTuple):
    """What a command wrote to a standard stream.

    Attributes:
        text: it; in base64 if ``binary``.
        binary: whether it is not UTF-8, or full of control characters.
        cut: how many bytes before it were not recorded.
    """

    text: str
    binary: bool = False
    cut: int = 0

    @property
    def data(self) -> bytes:
        """The bytes, with a note in the place of those that were not recorded."""
        data = base64.b64decode(self.text) if self.binary else self.text.encode()
        return f"[onceward: {self.cut} bytes were not recorded]\n".encode() + data if self.cut else data


class Copied:
    """A pipe for a command's standard stream. A thread reads it, remembers its last bytes, and passes it on.

    Attributes:
        end: the file descriptor that the command writes to.
    """

    def __init__(self, to: int) -> None:
        self._from, self.end = os.pipe()
        os.set_blocking(self._from, False)
        self._to, self._is_read = to, True  # whether somebody reads what is passed on
        self._tail, self._size = b"", 0
        self._rest: deque[bytes] = deque()  # what was read at the end, and is still to be passed on
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._thread = threading.Thread(target=self._copy, daemon=True)  # the exit does not wait for a stuck one
        self._thread.start()

    def close(self) -> CommandStream:
        """Take what is there, and return it all. A process that the command has left behind is not waited for."""
        os.close(self.end)
        with self._lock:
            for _ in range(_AT_MOST):
                if not (data := self._read()):
                    break
                self._rest.append(data)
            os.close(self._from)
            self._from = -1
        data, cut = self._tail, self._size - len(self._tail)
        encoded = base64.b64encode(data).decode()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return CommandStream(encoded, binary=True, cut=cut)
        if len(msgspec.json.encode(text)) > len(encoded) + 2:  # JSON takes 6 bytes for each control character
            return CommandStream(encoded, binary=True, cut=cut)
        return CommandStream(text, cut=cut)

    def is_passed_on(self, within: float) -> bool:
        """Return whether all of it was passed on. Waits for that, at most ``within`` seconds. Call it after ``close``."""
        self._thread.join(within)
        return not self._thread.is_alive()

    def _copy(self) -> None:
        while (data := self._next()) is not None:
            if not data:
                self._poll.poll(_LOOK)
            elif self._is_read:
                try:
                    write_all(self._to, data)
                except OSError:  # nobody reads any more; the command goes on
                    self._is_read = False

    def _next(self) -> bytes | None:
        with self._lock:
            return self._rest.popleft() if self._rest else self._read()

    def _read(self) -> bytes | None:
        """Return what the command wrote; b"" if nothing is there now, None at the end. The caller holds the lock."""
        if self._from < 0:
            return None
        try:
            data = os.read(self._from, 65_536)
        except BlockingIOError:
            return b""
        self._size += len(data)
        self._tail = (self._tail + data)[-KEPT:]
        return data or None
