"""What is told of a run: each line's output, each line's trouble, the progress, and the summary."""

import os
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

from onceward.consumers.stop import Stop
from onceward.pipe.attempt import Outcome, has_text
from onceward.pipe.jobs import Job
from onceward.pipe.lines import STDIN, Line
from onceward.pipe.progress import Shown, write_all
from onceward.pipe.screen import json, line, quoted

KINDS = ("ran", "replayed", "failed", "parked", "busy", "malformed")
_CHUNK = 64 * 1024


class Report:
    """Counts and tells; safe to be used by many threads, and never mixes the output of two lines.

    Args:
        shown: where to.
        stop: asked when the standard output is gone.
        as_json: one JSON object per line instead of the output itself.
        new_only: leave out what was recorded before.

    Attributes:
        counts: lines by what they came to.
        broken: why the standard output cannot be written to, once that is so.
    """

    def __init__(self, shown: Shown, stop: Stop, *, as_json: bool, new_only: bool) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self.broken: OSError | None = None
        self.read = 0
        self._shown, self._stop, self._as_json, self._new_only = shown, stop, as_json, new_only
        self._unstored = self._missing = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Show the progress from now on."""
        self._shown.start()

    def outcome(self, job: Job, outcome: Outcome) -> None:
        """Tell what became of a job."""
        with self._lock:
            self.counts[outcome.kind] += 1
            if outcome.unstored:
                self._unstored += outcome.kind == "ran"
                self._missing += outcome.kind == "replayed"
            if has_text(outcome.errors):
                assert outcome.errors is not None
                self._pass_on(outcome.errors)
            if self._new_only and outcome.kind == "replayed":
                outcome = outcome._replace(output=None)
            if outcome.kind not in {"ran", "replayed"}:
                place = f"{_place(job.file, job.number)}: {quoted(job.key)}"
                text = outcome.reason or outcome.error or ""
                self._shown.say(
                    f"{place}: {outcome.kind}: {line(text.removeprefix(f'{job.key}: ').removeprefix('parked '))}\n"
                )
            if self._as_json:
                self._out(_object(job.file, job.number, job.key, outcome))
            elif outcome.output is not None:
                self._out(outcome.output.raw())
            self._update()

    def malformed(self, read: Line, reason: str) -> None:
        """Tell of a line that nothing can be done with."""
        with self._lock:
            self.counts["malformed"] += 1
            self._shown.say(f"{_place(read.file, read.number)}: malformed: {line(reason)}\n")
            if self._as_json:
                self._out(_object(read.file, read.number, None, Outcome("malformed", reason)))
            self._update()

    def say(self, text: str) -> None:
        """Write a line of our own to the standard error."""
        with self._lock:
            self._shown.say(f"onceward: {line(text)}\n")

    def tick(self) -> None:
        """Show the progress, though nothing has happened."""
        with self._lock:
            self._update()

    def summary(self, end: str) -> None:
        """Tell how it went; ``end`` says how the run ended, if not by the end of its input."""
        seconds = round(time.monotonic() - self._began, 3)
        self._shown.stop()
        if self._unstored:
            self.say(f"{self._unstored} output(s) were too large to be recorded; their duplicates will print nothing")
        if self._missing:
            self.say(f"{self._missing} duplicate(s) printed nothing, for their output was too large to be recorded")
        told = ", ".join(f"{kind} {count}" for kind, count in self.counts.items())
        self.say(f"{told} in {seconds:.1f} s{f'; {end}' if end else ''}")
        if self._as_json:
            data = {"summary": {**self.counts, "seconds": seconds, "ended": end or "at the end of the input"}}
            self._out(iter([json(data).encode(), b"\n"]))

    # --- the caller holds the lock, or is alone -------------------------------------------------------------------

    def _update(self) -> None:
        told = ", ".join(f"{kind} {count}" for kind, count in self.counts.items() if count)
        self._shown.update(self.read, told or "nothing done yet")

    def _out(self, chunks: Iterator[bytes]) -> None:
        if self.broken is not None:
            return
        try:
            self._shown.out(chunks)
        except OSError as error:
            self.broken = error
            self._stop.ask()

    def _pass_on(self, errors: BinaryIO) -> None:
        errors.seek(0)
        while chunk := errors.read(_CHUNK):
            self._shown.say(chunk.decode(errors="replace"))


def _object(file: str, number: int, key: str | None, outcome: Outcome) -> Iterator[bytes]:
    head = {"file": file, "line": number, "key": key, "outcome": outcome.kind}
    yield json(head)[:-1].encode() + b',"output":'
    yield from iter([b"null"]) if outcome.output is None else outcome.output.json()
    yield b',"error":' + json(outcome.error).encode() + b"}\n"


def _place(file: str, number: int) -> str:
    return f"{'standard input' if file == STDIN else line(file)}:{number}"


class Rejects:
    """The file that takes the malformed lines; opened when there is one.

    Args:
        path: its path, or None to keep none.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._fd = -1

    def add(self, piece: bytes) -> None:
        """Append a line, or a piece of one that is too long to be held."""
        if self._path is None:
            return
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        write_all(self._fd, piece)

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
