"""The external command for a line: its arguments, filled with values of the line, and its run."""

import io
import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, NoReturn, cast

import msgspec

from onceward.claim.claim import Claim
from onceward.claim.held import current
from onceward.consumers.stop import Stop
from onceward.errors import KeyMissing
from onceward.keys.paths import Roots, StrictPath
from onceward.pipe.lines import LINE
from onceward.pipe.outcomes import Bytes, LineJob, Output
from onceward.pipe.watched import Watchdog, WatchdogGone
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec

# Programs that run code from an argument, and the letters of their options that take it.
_INTERPRETERS: Final = (
    (re.compile(r"(|ba|r|rba|da|a|k|mk|pdk|z|fi|c|tc)sh|su|runuser|flock|script|(python|pypy)[\d.]*"), "c"),
    (re.compile(r"(perl|ruby|lua)[\d.]*|osascript|Rscript"), "eE"),
    (re.compile(r"node|nodejs|bun"), "ep"),
    (re.compile(r"php[\d.]*"), "rBRE"),
)
_LONG: Final = frozenset({"--command", "--eval", "--print", "--run"})
_ANYWHERE: Final = frozenset({"su", "runuser", "flock", "script"})  # their options can follow other arguments
_JOINING: Final = frozenset({"ssh", "rsh"})  # they join the words after the host, for a remote shell


def code_in(argv: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each argument that is code, and the program that runs it, also in ``env sh -c``."""
    for at, word in enumerate(argv):
        name = word.rpartition("/")[2]
        if name in _JOINING:
            yield from ((i, name) for i in range(at + 1, len(argv)))
        letters = next((letters for names, letters in _INTERPRETERS if names.fullmatch(name)), None)
        if letters is not None and (code := list(_code_places(letters, name, argv, at + 1))):
            yield from ((i, name) for i in code)
            if name not in _ANYWHERE:
                return  # what follows are the arguments of that code


def _code_places(letters: str, name: str, argv: Sequence[str], at: int) -> Iterator[int]:
    may_be_value = name in _ANYWHERE
    for number, word in enumerate(argv[at:], at):
        if word.startswith(("-", "+")):
            may_be_value = True  # the next word, of this option
            if word.partition("=")[0] in _LONG or re.match(rf"[-+]\w*[{letters}]", word):
                yield from (number, number + 1)  # in the same argument, as perl allows, or in the next one
        elif may_be_value:
            may_be_value = name in _ANYWHERE
        else:
            return  # a script, or the name that a shell gives its code


_HINT = "write literal braces twice, {{ and }}"
_PLAIN: Final = r"""[^{}'"`]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`(?:\\.|[^`\\])*`"""
_INNER: Final = rf"(?:{_PLAIN}|\{{(?:{_PLAIN}|\{{(?:{_PLAIN})*\}})*\}})*"  # JMESPath with braces of its own
_BRACES: Final = re.compile(rf"\{{\{{|\}}\}}|\{{({_INNER})\}}|[{{}}]", re.DOTALL)


class Template:
    """One argument: literal text and JMESPath expressions in turn.

    Raises:
        ValueError: a brace is left open, or an expression is not valid.
    """

    def __init__(self, argument: str) -> None:
        self._parts: list[str | StrictPath] = []
        at = 0
        for match in _BRACES.finditer(argument):
            self._parts.append(argument[at : match.start()])
            at = match.end()
            if match[1] is not None:
                self._parts.append(_path(match[1], argument))
            elif len(match[0]) == 1:
                raise ValueError(f"a {match[0]} in {argument!r} has no other one; {_HINT}")
            else:
                self._parts.append(match[0][0])
        self._parts.append(argument[at:])

    @property
    def is_literal(self) -> bool:
        """Whether there is nothing to fill in."""
        return all(isinstance(part, str) for part in self._parts)

    def fill(self, value: object) -> str:
        """Return the argument for a parsed line; raises KeyMissing when a part of it is missing there."""
        return "".join(part if isinstance(part, str) else _text(part, value) for part in self._parts)


def _path(text: str, argument: str) -> StrictPath:
    if not text.strip():
        raise ValueError(f"{{}} in {argument!r} names nothing: {{line}} is the whole line; {_HINT}")
    try:
        return StrictPath(text, "argument", LINE)
    except ValueError as error:
        raise ValueError(f"{error}; {_HINT}") from error


def _text(path: StrictPath, value: object) -> str:
    value = path.search({"line": value})
    if value is None:
        raise KeyMissing(f"{{{path.expression}}} finds nothing in this line")
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if "\0" in text:
        raise KeyMissing(f"{{{path.expression}}} holds a NUL character, which an argument of a command cannot hold")
    return text


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
