"""The outcome of a line with its output, who is told of it, and how a run ends."""

import codecs
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, NamedTuple

import msgspec

from onceward.claim.claim import Claim
from onceward.terminal import encoded, json

_CHUNK = 64 * 1024
KINDS = ("ran", "replayed", "failed", "parked", "busy", "malformed")


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
        try:
            for _ in codecs.iterdecode(self.raw(), "utf-8"):
                pass
        except UnicodeDecodeError:
            yield b'{"hex":"'
            yield from (chunk.hex().encode() for chunk in self.raw())
            yield b'"}'
        else:
            yield b'"'
            yield from (json(text)[1:-1].encode() for text in codecs.iterdecode(self.raw(), "utf-8"))
            yield b'"'


class Value(NamedTuple):
    """What a function returned."""

    value: object

    def raw(self) -> Iterator[bytes]:
        """Yield a str as one or more lines, None as nothing, and all else as one line of JSON."""
        if isinstance(self.value, str):
            yield encoded(self.value)
            if not self.value.endswith("\n"):
                yield b"\n"
        elif self.value is not None:
            yield from self.json()
            yield b"\n"

    def json(self) -> Iterator[bytes]:
        """Yield it as JSON. A type that JSON does not know is written as its text."""
        try:
            yield json(self.value, _plain).encode()
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
            yield json(repr(self.value)).encode()


Output = Bytes | Value


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic
    return dump(mode="json") if dump is not None else str(value)


@dataclass(slots=True)
class LineJob:
    """A line and its outcome."""

    file: str
    number: int
    data: bytes = b""
    key: str | None = None  # as it stands in the ledger; None if the line is malformed
    given: object = None  # the command's arguments, or the parsed line for a function
    kind: str = ""  # its outcome, one of KINDS
    error: str | None = None  # why it is not done, or has no output
    reason: str = ""  # the error in a few words, for people
    output: Output | None = None  # all that the handler wrote or returned, also what is too large to record
    errors: BinaryIO | None = None  # what a command wrote to its standard error
    unstored: bool = False  # whether the output was too large to be recorded
    claim: Claim | None = None  # of the handler; None until it runs
    raised: BaseException | None = None  # by the handler
    due: float = 0.0  # when to try it, on the monotonic clock
    give_up: float | None = None  # until when to wait for another worker that holds the key; None before one was met
    # closes the files that a command wrote to, after the outcome was told
    files: ExitStack = field(default_factory=ExitStack)


class Reporter:
    """Counts the outcomes of lines. A subclass can also show them.

    The engine may call it from many threads. ``show`` runs one at a time, under ``lock``.

    Attributes:
        counts: how many lines have each outcome.
        broken: why the output cannot be written; the engine stops when it is set.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self.broken: OSError | None = None
        self.lock = threading.Lock()

    def outcome(self, job: LineJob) -> None:
        """Count and show the outcome of a line."""
        with self.lock:
            self.counts[job.kind] += 1
            self.show(job)

    def start(self) -> None:
        """Begin."""

    def show(self, job: LineJob) -> None:
        """Show the outcome of a line. Its files are closed after this call."""

    def say(self, text: str) -> None:
        """Show a message of the engine to a person."""

    def tick(self) -> None:
        """Show the progress; called several times a second while the engine waits."""


Why = Literal["done", "left", "malformed", "ledger", "interrupted", "unread"]


class End(NamedTuple):
    """How a run ended.

    Attributes:
        why: ``done``, or one of these. ``left``: some lines failed, are parked or busy, or the run stopped early.
            ``malformed``: all but malformed lines are done. ``ledger``: the ledger failed. ``interrupted``: by a signal.
            ``unread``: nobody reads the output any more.
        text: why it stopped before the end of the input; empty when it did not.
        counts: how many lines have each outcome.
        running: whether a handler still runs; its key stays claimed to the end of its lease.
    """

    why: Why
    text: str
    counts: dict[str, int]
    running: bool
