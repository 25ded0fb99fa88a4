"""The output of ``onceward relay``: a line of figures, the log, and with ``--json`` one object per record."""

import threading
import time

from onceward.cli.progress import shown
from onceward.observe.events import Happening, StoreRequest
from onceward.results.outcomes import describe
from onceward.terminal import json, line

KINDS = ("sent", "refused", "send_failed")


class RelayReport:
    """Counts and prints. Many threads may use it.

    Attributes:
        counts: messages by what became of them. One that is tried again counts again.
        left: the keys that were left alone, and why.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.counts = dict.fromkeys(KINDS, 0)
        self.left: dict[str, str] = {}
        self._shown = shown(None)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """How many messages are sent or refused."""
        return self.counts["sent"] + self.counts["refused"]

    def start(self) -> None:
        """Show the figures from now on."""
        self._shown.start()

    def event(self, event: Happening) -> None:
        """Take in what happened."""
        if isinstance(event, StoreRequest) or event.kind not in KINDS:
            return
        messages = event.messages or 1
        error = None if event.error is None else event.error if isinstance(event.error, str) else describe(event.error)
        with self._lock:
            self.counts[event.kind] += messages
            if self.as_json:
                told: dict[str, object] = {"outcome": event.kind, "key": event.key, "messages": messages}
                self._out(told | {"target": event.target, "error": error})

    def log(self, level: str, text: str) -> None:
        """Write a line of the log."""
        with self._lock:
            if self.as_json:
                self._out({"log": level, "text": text})
            else:
                self._shown.say(f"{level}: {line(text)}\n")

    def tick(self, waiting: int) -> None:
        """Show the figures."""
        with self._lock:
            self._shown.update(0, f"{self._told()}; {waiting} record(s) under way")

    def summary(self, end: str, waiting: int) -> None:
        """Print the summary; ``end`` says why it ended, empty when nothing more is due."""
        with self._lock:
            took = round(time.monotonic() - self._began, 3)
            self._shown.stop()
            left = f"; {waiting + len(self.left)} record(s) left" if waiting or self.left else ""
            self._shown.say(f"onceward: {self._told()} in {took:.1f} s{left}{f'; {line(end)}' if end else ''}\n")
            if self.as_json:
                counts = {**self.counts, "left": waiting + len(self.left)}
                self._out({"summary": {**counts, "seconds": took, "ended": end or "nothing more is due"}})

    def _told(self) -> str:
        counts = {"sent": self.counts["sent"], "refused": self.counts["refused"], "not now": self.counts["send_failed"]}
        return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "nothing sent"

    def _out(self, told: dict[str, object]) -> None:
        self._shown.out([json(told).encode() + b"\n"])
