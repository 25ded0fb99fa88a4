"""One attempt at one line, its output, and who is told of it."""

import codecs
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import msgspec

from onceward.claim.claim import Claim
from onceward.pipe.jobs import LineJob
from onceward.pipe.lines import Line
from onceward.terminal import json, lines

_CHUNK = 64 * 1024


class Bytes:
    """What a command wrote, in a file, because it may be too large for memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def raw(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk

    def json(self) -> Iterator[bytes]:
        """Yield a JSON string when it is UTF-8, else ``{"hex": "..."}``."""
        if self._is_text():
            decoder = codecs.getincrementaldecoder("utf-8")()
            yield b'"'
            for chunk in self.raw():
                yield json(decoder.decode(chunk))[1:-1].encode()
            yield b'"'
        else:
            yield b'{"hex":"'
            for chunk in self.raw():
                yield chunk.hex().encode()
            yield b'"}'

    def _is_text(self) -> bool:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in self.raw():
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True


class Value(NamedTuple):
    """What a function returned."""

    value: object

    def raw(self) -> Iterator[bytes]:
        """Yield a str as one or more lines, None as nothing, and all else as one line of JSON."""
        if isinstance(self.value, str):
            yield self.value.encode(errors="surrogateescape")
            if not self.value.endswith("\n"):
                yield b"\n"
        elif self.value is not None:
            yield from self.json()
            yield b"\n"

    def json(self) -> Iterator[bytes]:
        """Yield it as JSON. A type that JSON does not know is written as its text."""
        try:
            yield lines(msgspec.json.encode(self.value, enc_hook=_plain).decode()).encode()
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
            yield json(repr(self.value)).encode()


Output = Bytes | Value


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic
    return dump(mode="json") if dump is not None else str(value)


class Interrupted(BaseException):
    """The handler was killed; its key stays claimed to the end of its lease."""


@dataclass
class LineAttempt:
    """What becomes of a job."""

    job: LineJob
    claim: Claim | None = None  # the claim of the handler; None until the handler runs
    output: Output | None = None  # all that it wrote or returned, also what is too large to record
    errors: BinaryIO | None = None  # what a command wrote to its standard error
    error: BaseException | None = None  # what the handler raised
    reason: str = ""  # the error in a few words, for people
    # closes the files that a command wrote to. Close it when the outcome has been told
    files: ExitStack = field(default_factory=ExitStack)

    def failed(self, error: BaseException, reason: str = "") -> BaseException:
        """Remember and return what the handler raises."""
        self.error = error
        self.reason = reason or str(error)
        return error


class LineOutcome(NamedTuple):
    """The outcome of a line: ran, replayed, failed, parked, busy or malformed."""

    kind: str
    error: str | None = None
    output: Output | None = None
    errors: BinaryIO | None = None
    unstored: bool = False
    reason: str | None = None


KINDS = ("ran", "replayed", "failed", "parked", "busy", "malformed")


class Reporter:
    """Counts the outcomes of lines. A subclass can also show them.

    The engine may call it from many threads. ``show`` and ``reject`` run one at a time, under ``lock``.

    Attributes:
        counts: how many lines have each outcome.
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
