"""What a command prints while it runs: a line of figures, the log, and with ``--json`` one object per message."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.stop import Stop
from onceward.pipe.lines import STDIN
from onceward.pipe.outcomes import KINDS, LineJob, Output, Reporter, Value
from onceward.results.outcomes import describe
from onceward.terminal import decoded, json, line, lines, quoted, write_all

FIRST_LINE, LAST_LINE = 2.0, 60.0  # seconds until the first line, and between lines at most


class RunReport:
    """Counts and prints. Many threads may use it.

    It shows a run while it goes on: a line after two seconds, then at intervals that double up to a minute.

    Attributes:
        counts: how many messages have each outcome. A message that comes again counts again.
        broken: why the standard output cannot be written; None while it can.
        stop: called when ``broken`` is set.
        nothing: stands for the counts while there are none.
        missing: how many duplicates had an output that no record has.
        has_output: whether the standard output is for what the command itself writes; with JSON it always is.
    """

    nothing = "nothing done yet"
    missing = 0
    has_output = False

    def __init__(self, kinds: Collection[str], *, as_json: bool) -> None:
        self.as_json = as_json
        self.counts = dict.fromkeys(kinds, 0)
        self.broken: OSError | None = None
        self.stop: Callable[[], None] = lambda: None
        self.lock = threading.Lock()
        self._began = time.monotonic()
        self._every = FIRST_LINE
        self._next = self._began + FIRST_LINE

    def start(self) -> None:
        """Take the standard output. What called functions print goes to the standard error."""
        if self.as_json or self.has_output:
            sys.stdout = sys.stderr

    def log(self, level: str, text: str, trace: str | None) -> None:
        """Write a line of the log. JSON has the traceback, too."""
        with self.lock:
            if self.as_json:
                self._object({"log": level, "text": text, "traceback": trace})
            else:
                _tell(f"{level}: {line(text)}\n")

    def say(self, text: str) -> None:
        """Write a line of our own to the standard error."""
        with self.lock:
            _tell(f"onceward: {line(text)}\n")

    def tick(self, more: str = "") -> None:
        """Show the figures, and more, if it is time for a line."""
        with self.lock:
            self._tick(more)

    def summary(self, end: str, without: str, more: Mapping[str, int] | None = None) -> None:
        """Print the summary.

        Args:
            end: why it ended; empty when nothing is left.
            without: says so for programs.
            more: further counts; people see those that are not 0.
        """
        if self.missing:
            self.say(f"{self.missing} duplicate(s) printed nothing, because their output was too large to be recorded")
        took, more = round(time.monotonic() - self._began, 3), more or {}
        more_text = "".join(f"; {count} record(s) {name}" for name, count in more.items() if count)
        self.say(f"{self._summary()} in {took:.1f} s{more_text}{f'; {end}' if end else ''}")
        if self.as_json:
            self._object({"summary": {**self.counts, **more, "seconds": took, "ended": end or without}})

    # --- the caller holds the lock, or is alone -------------------------------------------------------------------

    def _tick(self, more: str = "") -> None:
        if time.monotonic() >= self._next:
            _tell(f"onceward: {self._summary()}{more}\n")
            self._every = min(2 * self._every, LAST_LINE)
            self._next = time.monotonic() + self._every

    def _summary(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items() if count) or self.nothing

    def _object(self, fields: Mapping[str, object]) -> None:
        self._out([json(fields).encode() + b"\n"])

    def _out(self, chunks: Iterable[bytes]) -> None:
        """Write to the standard output, filtered when that is a terminal."""
        if self.broken is not None:
            return
        try:
            for chunk in (text.encode() for text in decoded(chunks)) if os.isatty(1) else chunks:
                write_all(1, chunk)
        except OSError as error:
            self.broken = error
            self.stop()


def _tell(text: str) -> None:
    """Write to the standard error, filtered."""
    with suppress(OSError):  # nobody is left to be told
        write_all(2, lines(text).encode())


class WorkReport(RunReport):
    """The report of a worker."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(
            ("done", "replayed", "failed", "busy", "parked", "mismatch", "malformed", "deferred"), as_json=as_json
        )

    def outcome(self, outcome: BatchOutcome) -> None:
        """Count and print what became of a message."""
        with self.lock:
            self.counts[outcome.status] += 1
            if self.as_json:
                fields = {
                    "outcome": outcome.status,
                    "id": getattr(outcome.record, "id", None),
                    "key": outcome.key,
                    "error": None if outcome.error is None else describe(outcome.error),
                }
                self._out(_with_output(fields, Value(outcome.value) if outcome.ok else None))


@contextmanager
def heard(report: RunReport, level: int = logging.WARNING) -> Iterator[None]:
    """Let a report write the log of onceward from this level on."""
    log, handler = logging.getLogger("onceward"), Heard(report)
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)


class Heard(logging.Handler):
    """Hears the log of onceward for a report."""

    def __init__(self, report: RunReport) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on, with its error."""
        text, trace = record.getMessage(), None
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {describe(record.exc_info[1])}"
            trace = logging.Formatter().formatException(record.exc_info)
        self._report.log(record.levelname.lower(), text, trace)


_CHUNK = 64 * 1024


class PipeReport(RunReport, Reporter):
    """Writes to the standard output and error; never mixes the output of two lines."""

    has_output = True

    def __init__(self, stop: Stop, *, as_json: bool, new_only: bool) -> None:
        super().__init__(KINDS, as_json=as_json)
        self._signals, self._new_only = stop, new_only
        self._unstored = 0

    def start(self) -> None:
        """Take the signals of this process and show the progress from now on."""
        self._signals.listen()
        super().start()

    def show(self, job: LineJob) -> None:
        """Show a line and what became of it."""
        if job.unstored:
            self._unstored += job.kind == "ran"
            self.missing += job.kind == "replayed"
        if job.errors is not None:
            self._pass_on(job.errors)
        if self._new_only and job.kind == "replayed":
            job.output = None
        if job.kind not in {"ran", "replayed"}:
            key = "" if job.key is None else f"{quoted(job.key)}: "
            text = line((job.reason or job.error or "").removeprefix(f"{job.key}: ").removeprefix("parked "))
            file = "standard input" if job.file == STDIN else line(job.file)
            _tell(f"{file}:{job.number}: {key}{job.kind}: {text}\n")
        if self.as_json:
            head = {"file": job.file, "line": job.number, "key": job.key, "outcome": job.kind, "error": job.error}
            self._out(_with_output(head, job.output))
        elif job.output is not None:
            self._out(job.output.raw())
        self._tick()

    def end(self, text: str) -> None:
        """Write how it went; ``text`` says why the run stopped before the end of its input."""
        if self._unstored:
            self.say(f"{self._unstored} output(s) were too large to be recorded; their duplicates will print nothing")
        self.summary(text, "at the end of the input")

    def _summary(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items())

    def _pass_on(self, errors: BinaryIO) -> None:
        errors.seek(0)
        while chunk := errors.read(_CHUNK):
            _tell(chunk.decode(errors="replace"))


def _with_output(fields: Mapping[str, object], output: Output | None) -> Iterator[bytes]:
    """Yield an object with an output, which may be too large for memory."""
    yield json(fields)[:-1].encode() + b',"output":'
    yield from [b"null"] if output is None else output.json()
    yield b"}\n"
