"""Deliveries in processes of their own, which SIGKILL ends. What they did reaches the test through a file.

A forked process appends to the file before it goes on, so nothing that it did is lost with it.
"""

import os
import pickle
import shutil
import signal
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onceward.stores.sqlite.store import SqliteStore
from onceward.testing.clock import ManualClock


class _Unsendable(str):
    """Stands for an answer that cannot be pickled."""

    __slots__ = ()


class ForkedWorkers:
    """The processes of a crash test, and a folder for their ledgers and what they tell."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="onceward-crashes-"))
        weakref.finalize(self, _remove, self._path, os.getpid())  # for a loop that nobody ends
        self._journal = self._path / "journal"
        self._read = 0
        self._ledgers = 0
        self._parent = os.getpid()

    def ledger(self, clock: ManualClock) -> SqliteStore:
        """Return a ledger in an empty file."""
        self._ledgers += 1
        return SqliteStore(str(self._path / f"ledger-{self._ledgers}.db"), clock=clock)

    @property
    def inside(self) -> bool:
        """Whether this is one of the processes, and not the test."""
        return os.getpid() != self._parent

    def run(self, deliver: Callable[[], object]) -> bool:
        """Call ``deliver`` in a process of its own, which tells its answer. Return whether it was killed."""
        with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads; no thread's lock is used here
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                self._answer(deliver)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        return os.WIFSIGNALED(status)

    def _answer(self, deliver: Callable[[], object]) -> None:
        try:
            answer = deliver()
        except BaseException as error:
            self._tell_or("raised", error, RuntimeError(repr(error)))
        else:
            self._tell_or("answered", answer, _Unsendable(repr(answer)))

    def _tell_or(self, kind: str, value: object, other: object) -> None:
        try:
            pickle.loads(pickle.dumps(value))  # noqa: S301 - our own; some errors fail only here
        except Exception:
            value = other
        self.tell(kind, value)

    def tell(self, kind: str, *values: object) -> None:
        """Tell the test something."""
        data = pickle.dumps((kind, values))
        file = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, len(data).to_bytes(4, "big") + data)
        finally:
            os.close(file)

    def told(self) -> Iterator[tuple[str, Any]]:
        """Yield what the processes told since the last time."""
        data = self._journal.read_bytes() if self._journal.exists() else b""
        while self._read < len(data):
            begin = self._read + 4
            self._read = begin + int.from_bytes(data[self._read : begin], "big")
            kind, values = pickle.loads(data[begin : self._read])  # noqa: S301 - our own
            if values and isinstance(values[0], _Unsendable):
                raise TypeError(
                    f"{values[0]}: this answer cannot be sent from its process. Let it return what pickle takes"
                )
            yield kind, values

    @staticmethod
    def die() -> None:
        """End this process as a crash does."""
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Remove the folder."""
        _remove(self._path, self._parent)


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
