"""The file that takes the malformed lines."""

import os

from onceward.terminal import write_all


class Rejects:
    """Appends malformed lines to a file, which is opened with the first of them.

    Args:
        path: its path, or None to keep none.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._fd = -1

    def add(self, piece: bytes) -> None:
        """Append a line, or a piece of a line that is too long for memory."""
        if self._path is None:
            return
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        write_all(self._fd, piece)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
