"""The engine tells a reporter what happens, and never writes to a terminal itself."""

import threading

from onceward.pipe.attempt import LineOutcome
from onceward.pipe.jobs import LineJob
from onceward.pipe.lines import Line

KINDS = ("ran", "replayed", "failed", "parked", "busy", "malformed")


class Reporter:
    """Counts the lines by what became of them. A subclass can also show them.

    The engine may call it from many threads. ``show`` and ``reject`` run one at a time, under ``lock``.

    Attributes:
        counts: lines by what they came to.
        read: bytes of the input that were read so far.
        broken: why the output cannot be written; the engine stops when it is set.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self.read = 0
        self.broken: OSError | None = None
        self.lock = threading.Lock()

    def outcome(self, job: LineJob, outcome: LineOutcome) -> None:
        """Count and show what became of a line that has a key."""
        with self.lock:
            self.counts[outcome.kind] += 1
            self.show(job, outcome)

    def malformed(self, line: Line, reason: str) -> None:
        """Count and show a line that cannot be handled."""
        with self.lock:
            self.counts["malformed"] += 1
            self.reject(line, reason)

    def start(self, total: int | None) -> None:
        """Begin; ``total`` is the size of the input in bytes, None when it is not known."""

    def show(self, job: LineJob, outcome: LineOutcome) -> None:
        """Show what became of a line."""

    def reject(self, line: Line, reason: str) -> None:
        """Show a malformed line."""

    def say(self, text: str) -> None:
        """Show a message of the engine to a person."""

    def tick(self) -> None:
        """Show the progress; called several times a second while the engine waits."""
