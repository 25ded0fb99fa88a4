"""The output of a worker's command, such as ``onceward work``: a line of figures, the log, and with ``--json`` one object per message."""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from onceward.batch.outcomes import BatchOutcome
from onceward.cli.progress import shown
from onceward.errors import OncewardError
from onceward.pipe.output import Value
from onceward.results.outcomes import describe
from onceward.terminal import json, line

KINDS = ("done", "replayed", "failed", "busy", "parked", "mismatch", "malformed", "deferred")
_WINDOW = 5.0  # seconds over which the rate is taken


class WorkReport:
    """Counts and prints. Many threads may use it.

    Attributes:
        counts: messages by what became of them. A message that comes again counts again.
        broken: why the standard output cannot be written; None while it can.
        stop: called when ``broken`` is set.
    """

    read = 0  # bytes of an input with an end

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.counts = dict.fromkeys(KINDS, 0)
        self.broken: OSError | None = None
        self.stop: Callable[[], None] = lambda: None
        self._shown = shown(None)
        self._began = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()  # when, and how many were done by then
        self._lock = threading.Lock()

    def expect(self, total: int | None) -> None:
        """Show the share of an input that has so many bytes; call it before :meth:`start`."""
        self._shown = shown(total)

    def start(self) -> None:
        """Show the figures from now on. With JSON, what the called function prints goes to the standard error."""
        self._shown.start()
        if self.as_json:
            sys.stdout = sys.stderr

    def outcome(self, outcome: BatchOutcome) -> None:
        with self._lock:
            self.counts[outcome.status] += 1
            if self.as_json:
                self._out(_object(outcome))

    def log(self, level: str, text: str, trace: str | None) -> None:
        with self._lock:
            if self.as_json:
                self._out(json({"log": level, "text": text, "traceback": trace}).encode() + b"\n")
            else:
                indented = (
                    "" if trace is None else "    " + trace.replace("\n", "\n    ") + "\n"
                )  # so that it forges no line
                self._shown.say(f"{level}: {line(text)}\n{indented}")

    def say(self, text: str) -> None:
        """Write a line of our own to the standard error."""
        with self._lock:
            self._shown.say(f"onceward: {line(text)}\n")

    def tick(self, in_flight: int) -> None:
        with self._lock:
            now, done = time.monotonic(), self.counts["done"] + self.counts["replayed"]
            self._recent.append((now, done))
            while now - self._recent[0][0] > _WINDOW:
                self._recent.popleft()
            since, before = self._recent[0]
            rate = (done - before) / (now - since) if now > since else 0.0
            self._shown.update(self.read, f"{self._told()}; in flight {in_flight}, {rate:.0f}/s")

    def summary(self, end: str) -> None:
        """Print the summary; ``end`` says why it ended, empty when the queue is empty."""
        with self._lock:
            seconds = round(time.monotonic() - self._began, 3)
            self._shown.stop()
            self._shown.say(f"onceward: {self._told()} in {seconds:.1f} s{f'; {line(end)}' if end else ''}\n")
            if self.as_json:
                told = {"summary": {**self.counts, "seconds": seconds, "ended": end or "the queue is empty"}}
                self._out(json(told).encode() + b"\n")

    def _told(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items() if count) or "nothing done yet"

    def _out(self, data: bytes) -> None:
        if self.broken is not None:
            return
        try:
            self._shown.out([data])
        except OSError as error:
            self.broken = error
            self.stop()


class Heard(logging.Handler):
    """Hears the log of onceward for a report."""

    def __init__(self, report: WorkReport) -> None:
        super().__init__(logging.INFO if report.as_json else logging.WARNING)
        self._report = report
        self._format = logging.Formatter()
        self._seen: set[tuple[type[BaseException], object, int]] = set()  # errors, and the lines that raised them

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on: as JSON with its traceback, as text with the traceback of the first error of its kind."""
        error = record.exc_info[1] if record.exc_info else None
        text, trace = record.getMessage(), None
        if record.exc_info and error is not None:
            if self._report.as_json or self._is_new(error):
                trace = self._format.formatException(record.exc_info)
            else:
                text = f"{text}: {describe(error)}"
        self._report.log(record.levelname.lower(), text, trace)

    def _is_new(self, error: BaseException) -> bool:
        """Return whether an error is the first of its kind. Our own errors need no traceback."""
        frame = error.__traceback__
        if isinstance(error, OncewardError) or frame is None:
            return False
        while frame.tb_next is not None:
            frame = frame.tb_next
        kind = (type(error), frame.tb_frame.f_code, frame.tb_lineno)
        fresh = kind not in self._seen
        self._seen.add(kind)
        return fresh


def _object(outcome: BatchOutcome) -> bytes:
    delivery = outcome.record
    head = {
        "outcome": outcome.status,
        "id": getattr(delivery, "id", None),
        "key": outcome.key,
        "error": None if outcome.error is None else describe(outcome.error),
    }
    output = b"".join(Value(outcome.value).json()) if outcome.ok else b"null"
    return json(head)[:-1].encode() + b',"output":' + output + b"}\n"
