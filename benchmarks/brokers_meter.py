"""What the consumers of `brokers.py` measure: from a fifth of their messages on, when connections and statements are warm, to the last."""

import threading
import time
from pathlib import Path


class Meter:
    """Counts handled messages, the time they take, and the CPU of this process and of the database.

    Args:
        messages: how many there are.
        postmaster: the process of the database whose children serve connections.
    """

    def __init__(self, messages: int, postmaster: int) -> None:
        self._warm = messages // 5
        self._left = messages
        self._begun = 0
        self._postmaster = postmaster
        self._lock = threading.Lock()
        self.told: dict[str, float] = {}

    def begin(self) -> None:
        """Note that a handler begins."""
        with self._lock:
            self._begun += 1
            if self._begun == self._warm + 1:
                self._since = self._now(), self._left

    def done(self) -> bool:
        """Note that a message is handled. Tell whether it was the last."""
        with self._lock:
            self._left -= 1
            if self._left:
                return False
            before, messages = self._since
            self.told = {name: (now - before[name]) / messages for name, now in self._now().items()}
            return True

    def _now(self) -> dict[str, float]:
        """Return the seconds of the clock, of this process and of the database so far."""
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        server = sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in children)
        return {"wall": time.perf_counter(), "cpu": time.process_time(), "server": server / 1e9}
