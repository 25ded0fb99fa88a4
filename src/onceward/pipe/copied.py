"""What a command writes: kept for the record, and passed on. A reader that stands still does not hold up the record."""

import base64
import os
import threading
from collections import deque
from typing import Final, NamedTuple

import msgspec

from onceward.terminal import readable, write_all

KEPT: Final = 65_536  # bytes of each stream that are recorded, at its end
_AT_MOST: Final = 32  # reads of 64 KiB; a Linux pipe holds up to 1 MiB (pipe(7))
_AHEAD: Final = 2  # reads that a running command is ahead of the reader


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
    """A pipe for a command's standard stream: one thread reads and remembers its last bytes, another one passes it on.

    Attributes:
        end: the file descriptor that the command writes to.
    """

    def __init__(self, to: int) -> None:
        self._from, self.end = os.pipe()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._from, False)
        self._to = to
        self._tail, self._size = bytearray(), 0
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._is_read = True  # whether somebody reads what is passed on
        self._has_ended = False  # whether the command has
        self._is_all = False  # whether all that is to be passed on is pending
        self._reader = threading.Thread(target=self._copy, daemon=True)
        self._writer = threading.Thread(target=self._pass_on, daemon=True)  # the exit does not wait for a stuck one
        self._reader.start()
        self._writer.start()

    def close(self) -> CommandStream:
        """Take what is there, and return it all. A process that the command has left behind is not waited for."""
        os.close(self.end)
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        os.close(self._waker)
        self._reader.join()
        os.close(self._from)
        os.close(self._wake)
        with self._changed:
            self._is_all = True
            self._changed.notify_all()
        data, cut = bytes(self._tail), self._size - len(self._tail)
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
        self._writer.join(within)
        return not self._writer.is_alive()

    def _copy(self) -> None:
        ready: set[int] = set()
        while self._wake not in ready:
            ready = readable(self._from, self._wake)
            for _ in range(_AT_MOST):
                data = self._read()
                if data == b"":
                    return
                if data is None:
                    break
                self._take(data)

    def _read(self) -> bytes | None:
        try:
            return os.read(self._from, 65_536)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        self._tail = (self._tail + data)[-KEPT:]
        with self._changed:
            self._changed.wait_for(lambda: len(self._pending) < _AHEAD or self._has_ended or not self._is_read)
            if self._is_read:
                self._pending.append(data)
                self._changed.notify_all()

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._is_all)
                if not self._pending:
                    return
                data = self._pending[0]
            try:
                write_all(self._to, data)
            except OSError:  # nobody reads any more; the command goes on
                with self._changed:
                    self._is_read = False
                    self._pending.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._pending.popleft()
                self._changed.notify_all()
