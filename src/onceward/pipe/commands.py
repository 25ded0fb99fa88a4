"""Running the external command for a line."""

import io
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NoReturn, cast

from onceward.claim.claim import Claim
from onceward.claim.held import current
from onceward.consumers.stop import Stop
from onceward.keys.paths import Roots
from onceward.pipe.lines import LINE
from onceward.pipe.outcomes import Bytes, LineJob, Output
from onceward.pipe.template import Template, code_in
from onceward.pipe.watched import Watchdog, WatchdogGone
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec

_INSTEAD = (
    "Give it as an argument, as in: -- sh -c 'charge \"$1\"' sh '{line.id}'; or read the line from the standard input"
)
_TAIL = 800  # bytes of standard error that are recorded; the record takes 1000 characters in all


class CommandFailed(Exception):
    """The command ended with another status than 0, or could not be started."""


class Interrupted(BaseException):
    """The handler was killed; its key stays claimed to the end of its lease."""


class Command:
    """A command with ``{line.id}`` and the like in its arguments.

    Args:
        argv: the command and its arguments.
        stop: if it is forced, as by a second signal, running commands are killed.
        max_result: bytes of output that are recorded.

    Raises:
        ValueError: the command cannot be found or executed, or its arguments are not valid.
    """

    codec: Codec | None = None
    roots: Roots = LINE

    def __init__(self, argv: Sequence[str], stop: Stop, max_result: int) -> None:
        if not hasattr(os, "fork"):
            raise ValueError("a command after -- needs a POSIX system, where it is killed if onceward is. Use --call")
        if isinstance(argv, str) or not all(isinstance(part, str) for part in argv) or not argv:
            raise ValueError("give the command as a list of texts, such as ['./charge.sh', '{line.id}']")
        self.target = shlex.join(argv).encode(errors="surrogateescape").decode(errors="replace")
        self.identity = "\0".join(["command", *argv])
        self._templates = [Template(argument) for argument in argv]
        if not self._templates[0].is_literal:
            raise ValueError(f"{argv[0]}: the command itself must be the same for every line, without {{...}}")
        for at, program in code_in(argv):
            if at < len(argv) and not self._templates[at].is_literal:
                raise ValueError(
                    f"{argv[at]!r} is code for {program}, and a line filled in there would run as code. {_INSTEAD}"
                )
        self._program = executable(self._templates[0].fill(None))
        self._stop = stop
        self._max_result = max_result
        self._watchdog = Watchdog()
        stop.on_force = self._watchdog.kill

    def prepare(self, value: object) -> object:
        """Return the arguments for a parsed line. Raises KeyMissing if the line lacks a field."""
        return [template.fill(value) for template in self._templates]

    def handle(self, job: LineJob) -> object:
        """Run it for one line and return its output. Raises CommandFailed, or Interrupted if it was killed."""
        try:
            out, job.errors = (job.files.enter_context(unnamed_file()) for _ in range(2))
            status = self._run(job, out, job.errors)
        except OSError as error:
            raise CommandFailed(f"it could not be run: {error}") from error
        if status:
            job.reason = described_status(status)
            raise CommandFailed(f"{job.reason}{tail_of(job.errors)}")
        job.output = Bytes(out)
        return self._recordable(out)

    def replayed(self, value: object) -> Output:
        """Return the output of an earlier run."""
        return Bytes(io.BytesIO(value.encode() if isinstance(value, str) else cast("bytes", value)))

    def close(self) -> None:
        self._watchdog.close()

    def _run(self, job: LineJob, out: BinaryIO, err: BinaryIO) -> int:
        variables = {**os.environb, **variables_of(current())}
        data = job.data if job.data.endswith(b"\n") else job.data + b"\n"
        try:
            with unnamed_file(data) as stdin:
                standard = [file.fileno() for file in (stdin, out, err)]
                status = self._watchdog.run(self._program, cast("list[str]", job.given), variables, standard)
        except WatchdogGone:
            raise (
                Interrupted() if self._stop.forced else Interrupted("the process that starts the commands was killed")
            ) from None
        if status == -signal.SIGKILL and self._stop.forced:
            raise Interrupted
        return status

    def _recordable(self, out: BinaryIO) -> object:
        size = out.seek(0, os.SEEK_END)
        if size > self._max_result:
            return _TooLarge((size, self._max_result))
        out.seek(0)
        data = out.read()
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data


def variables_of(claim: Claim) -> dict[bytes, bytes]:
    """Return the variables that tell a command of its claim."""
    variables = {
        "ONCEWARD_KEY": claim.record.key,
        "ONCEWARD_DERIVED_KEY": claim.key(),
        "ONCEWARD_FENCE": str(claim.fence),
        "ONCEWARD_ATTEMPT": str(claim.attempt),
    }
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


class _TooLarge(tuple[int, int]):
    """Stands for an output that is too large to read into memory. Recording it fails, with the reason."""

    __slots__ = ()
    _fields = ("size", "limit")

    def __iter__(self) -> Iterator[NoReturn]:
        raise NotReplayable(f"the output took {self[0]} bytes, and at most {self[1]} are stored")


def unnamed_file(data: bytes = b"") -> BinaryIO:
    """Return a file without a name, at its start. Unlike with a pipe, a command that writes to it never waits for us to read."""
    file = cast("BinaryIO", tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 - its caller closes it
    file.write(data)
    file.seek(0)
    return file


def executable(name: str) -> str:
    """Return the path of the program; raises ValueError if the system cannot execute it."""
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"{name}: no such command, or not an executable file")
    return path


def described_status(status: int) -> str:
    """Return how a command ended, in words; ``status`` is negative for a signal."""
    if status > 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def tail_of(err: BinaryIO) -> str:
    """Return the end of what a command wrote to its standard error, as an error quotes it."""
    size = err.seek(0, os.SEEK_END)
    err.seek(max(0, size - _TAIL))
    text = err.read(_TAIL).decode(errors="replace").strip()
    return f": {text}" if text else ""
