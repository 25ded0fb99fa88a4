"""What a command prints while it runs: a line of figures, the log, and with ``--json`` one object per message."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.stop import Stop
from onceward.errors import OncewardError
from onceward.pipe.lines import STDIN
from onceward.pipe.outcomes import KINDS, LineJob, Reporter, Value
from onceward.results.outcomes import describe
from onceward.terminal import decoded, json, line, lines, quoted, write_all

FIRST_LINE, LAST_LINE = 2.0, 60.0  # seconds until the first line, and between lines at most


class Shown:
    """Shows a run while it goes on: a line after two seconds, then at intervals that double up to a minute.

    The caller must let in one thread at a time.
    """

    def __init__(self) -> None:
        self._every = FIRST_LINE
        self._next = time.monotonic() + self._every

    def update(self, text: str) -> None:
        """Show what became of the messages, if it is time for a line."""
        if time.monotonic() < self._next:
            return
        self.say(f"onceward: {text}\n")
        self._every = min(2 * self._every, LAST_LINE)
        self._next = time.monotonic() + self._every

    def out(self, chunks: Iterable[bytes]) -> None:
        """Write to the standard output, filtered when that is a terminal; raises OSError."""
        for chunk in (text.encode() for text in decoded(chunks)) if os.isatty(1) else chunks:
            write_all(1, chunk)

    def say(self, text: str) -> None:
        """Write to the standard error, filtered."""
        try:
            write_all(2, lines(text).encode())
        except OSError:
            pass  # nobody is left to be told


class RunReport:
    """Counts and prints. Many threads may use it.

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
        self._screen = Shown()
        self._began = time.monotonic()

    def start(self) -> None:
        """Show the figures from now on. What called functions print may go to the standard error."""
        self._screen = Shown()
        if self.as_json or self.has_output:
            sys.stdout = sys.stderr

    def log(self, level: str, text: str, trace: str | None) -> None:
        """Write a line of the log. Its traceback is indented, so that it forges no line."""
        with self.lock:
            if self.as_json:
                self._object({"log": level, "text": text, "traceback": trace})
            else:
                indented = "" if trace is None else "    " + trace.replace("\n", "\n    ") + "\n"
                self._screen.say(f"{level}: {line(text)}\n{indented}")

    def say(self, text: str) -> None:
        """Write a line of our own to the standard error."""
        with self.lock:
            self._screen.say(f"onceward: {line(text)}\n")

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

    def _summary(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items() if count) or self.nothing

    def _object(self, fields: Mapping[str, object]) -> None:
        self._out([json(fields).encode() + b"\n"])

    def _out(self, chunks: Iterable[bytes]) -> None:
        if self.broken is not None:
            return
        try:
            self._screen.out(chunks)
        except OSError as error:
            self.broken = error
            self.stop()


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
                self._out([_object(outcome)])

    def tick(self, in_flight: int) -> None:
        """Show the figures."""
        with self.lock:
            self._screen.update(f"{self._summary()}; in flight {in_flight}")


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
            self._screen.say(f"{file}:{job.number}: {key}{job.kind}: {text}\n")
        if self.as_json:
            self._out(_line_object(job))
        elif job.output is not None:
            self._out(job.output.raw())
        self._update()

    def tick(self) -> None:
        with self.lock:
            self._update()

    def end(self, text: str) -> None:
        """Write how it went; ``text`` says why the run stopped before the end of its input."""
        if self._unstored:
            self.say(f"{self._unstored} output(s) were too large to be recorded; their duplicates will print nothing")
        self.summary(text, "at the end of the input")

    # --- the caller holds the lock, or is alone -------------------------------------------------------------------

    def _summary(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items())

    def _update(self) -> None:
        self._screen.update(super()._summary())

    def _pass_on(self, errors: BinaryIO) -> None:
        errors.seek(0)
        while chunk := errors.read(_CHUNK):
            self._screen.say(chunk.decode(errors="replace"))


def _line_object(job: LineJob) -> Iterator[bytes]:
    head = {"file": job.file, "line": job.number, "key": job.key, "outcome": job.kind}
    yield json(head)[:-1].encode() + b',"output":'
    yield from iter([b"null"]) if job.output is None else job.output.json()
    yield b',"error":' + json(job.error).encode() + b"}\n"
