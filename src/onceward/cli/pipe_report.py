"""What ``onceward pipe`` tells: each line's output and trouble, the progress, and the summary."""

import sys
from collections.abc import Iterator
from typing import BinaryIO

from onceward.cli.progress import shown
from onceward.cli.report import RunReport
from onceward.consumers.stop import Stop
from onceward.pipe.attempt import LineOutcome
from onceward.pipe.jobs import LineJob
from onceward.pipe.lines import STDIN, Line
from onceward.pipe.reporter import KINDS, Reporter
from onceward.terminal import json, line, quoted

_CHUNK = 64 * 1024


class PipeReport(RunReport, Reporter):
    """Writes to the standard output and error; never mixes the output of two lines."""

    def __init__(self, stop: Stop, *, as_json: bool, new_only: bool) -> None:
        super().__init__(KINDS, as_json=as_json)
        self._signals, self._new_only = stop, new_only
        self._unstored = self._missing = self.read = 0

    def start(self, total: int | None = None) -> None:
        """Take the signals of this process and show the progress from now on."""
        self._signals.listen()
        self._shown = shown(total)
        super().start()
        sys.stdout = sys.stderr  # what a called function prints is no result

    def show(self, job: LineJob, outcome: LineOutcome) -> None:
        if outcome.unstored:
            self._unstored += outcome.kind == "ran"
            self._missing += outcome.kind == "replayed"
        if outcome.errors is not None:
            self._pass_on(outcome.errors)
        if self._new_only and outcome.kind == "replayed":
            outcome = outcome._replace(output=None)
        if outcome.kind not in {"ran", "replayed"}:
            place = f"{_place(job.file, job.number)}: {quoted(job.key)}"
            text = outcome.reason or outcome.error or ""
            self._shown.say(
                f"{place}: {outcome.kind}: {line(text.removeprefix(f'{job.key}: ').removeprefix('parked '))}\n"
            )
        if self.as_json:
            self._out(_object(job.file, job.number, job.key, outcome))
        elif outcome.output is not None:
            self._out(outcome.output.raw())
        self._update()

    def reject(self, read: Line, reason: str) -> None:
        self._shown.say(f"{_place(read.file, read.number)}: malformed: {line(reason)}\n")
        if self.as_json:
            self._out(_object(read.file, read.number, None, LineOutcome("malformed", reason)))
        self._update()

    def tick(self) -> None:
        with self.lock:
            self._update()

    def end(self, text: str) -> None:
        """Write how it went; ``text`` says why the run stopped before the end of its input."""
        if self._unstored:
            self.say(f"{self._unstored} output(s) were too large to be recorded; their duplicates will print nothing")
        if self._missing:
            self.say(f"{self._missing} duplicate(s) printed nothing, because their output was too large to be recorded")
        self.summary(text, "at the end of the input")

    # --- the caller holds the lock, or is alone -------------------------------------------------------------------

    def _told(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items())

    def _update(self) -> None:
        self._shown.update(self.read, super()._told())

    def _pass_on(self, errors: BinaryIO) -> None:
        errors.seek(0)
        while chunk := errors.read(_CHUNK):
            self._shown.say(chunk.decode(errors="replace"))


def _object(file: str, number: int, key: str | None, outcome: LineOutcome) -> Iterator[bytes]:
    head = {"file": file, "line": number, "key": key, "outcome": outcome.kind}
    yield json(head)[:-1].encode() + b',"output":'
    yield from iter([b"null"]) if outcome.output is None else outcome.output.json()
    yield b',"error":' + json(outcome.error).encode() + b"}\n"


def _place(file: str, number: int) -> str:
    return f"{'standard input' if file == STDIN else line(file)}:{number}"
