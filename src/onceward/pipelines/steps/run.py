"""The step ``run``."""

import os
import re
import threading
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from onceward.errors import OncewardError
from onceward.pipe.commands import code_in, described_status, executable, tail_of, unnamed_file, variables_of
from onceward.pipe.watched import Watchdog, WatchdogGone
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepFailed, content_of, text_of
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.settings import MESSAGE, Expression, PathFinder, Settings, given

_NEGATIVE: Final = re.compile(r"-[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?").fullmatch


class Argument(Settings):
    """An argument from the message.

    Attributes:
        value: The value: a text unchanged, everything else as JSON.
    """

    value: Expression


class RunStep(EffectSettings):
    """Run a command, without a shell. A value of the message is always a whole argument, never a part of one.

    The command finds ONCEWARD_KEY, ONCEWARD_DERIVED_KEY, ONCEWARD_FENCE and ONCEWARD_ATTEMPT in its environment. The
    derived key is the same on every attempt: pass it to services that take idempotency keys. If onceward is killed, the
    command is killed, too.

    Attributes:
        command: The program and its arguments, such as [./charge.sh, --id, {value: message.id}].
        input: What the command reads from its standard input, as a line.
        output: How the standard output is read as the result. If it is not JSON, it stays text.
    """

    command: Annotated[list[str | Argument], Meta(min_length=1)]
    input: Expression = given(MESSAGE)
    output: Literal["text", "json"] = "text"

    @property
    def title(self) -> str:
        return self.command[0] if isinstance(self.command[0], str) else "run"

    def build(self, kit: "Kit") -> EffectAction:
        program, arguments = self._checked(kit)
        commands = Commands(program)
        kit.closing(commands.close)

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            argv = [one if isinstance(one, str) else _text(one, message) for one in arguments]
            _check_options(arguments, argv)
            variables = {
                **os.environb,
                **variables_of(call.claim),
                b"ONCEWARD_DERIVED_KEY": call.key().encode(),
            }
            text = await call.thread(commands.run, argv, variables, content_of(self.input(message))[0] + b"\n")
            if self.output == "json":
                try:
                    return msgspec.json.decode(text)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    pass
            return text.decode(errors="replace")

        return make

    def _checked(self, kit: "Kit") -> tuple[str, list[str | PathFinder]]:
        """Return the program and the arguments, with the expressions of those that are filled in."""
        first, program = self.command[0], ""
        if isinstance(first, Argument):
            kit.mistake(("command", 0), "the program itself must be the same for every message")
        else:
            here = kit.folder / first
            with kit.noting(("command", 0)):
                program = executable(str(here) if "/" in first and here.exists() else first)
        if not hasattr(os, "fork"):
            kit.mistake("", "run needs a POSIX system, where a command is killed if onceward is. Use call")
        for number, one in enumerate(self.command):
            if isinstance(one, str) and "\0" in one:
                kit.mistake(("command", number), "a command cannot get a NUL character")
        words = [one if isinstance(one, str) else "{}" for one in self.command]
        for at, interpreter in code_in(words):
            if at < len(words) and isinstance(self.command[at], Argument):
                kit.mistake(
                    ("command", at),
                    f"this argument is code for {interpreter}, and a message filled in there would run as code. Give it as an "
                    "argument of the code, or let it read the standard input",
                )
        return program, [one if isinstance(one, str) else one.value for one in self.command]


class Commands:
    """Runs a program under a watchdog, which kills it if this process is killed."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._watchdog: Watchdog | None = None

    def run(self, argv: list[str], variables: dict[bytes, bytes], data: bytes) -> bytes:
        """Return what the command wrote; raises StepFailed, or OSError if it cannot be started."""
        with self._lock:
            watchdog = self._watchdog = self._watchdog or Watchdog()
        with unnamed_file(data) as stdin, unnamed_file() as out, unnamed_file() as err:
            try:
                standard = [file.fileno() for file in (stdin, out, err)]
                status = watchdog.run(self._program, argv, variables, standard)
            except WatchdogGone:
                self._drop(watchdog)
                # No failure of the step: on_lapse decides about it, and not on_error.
                raise OncewardError(
                    f"{self._program}: the process that starts it was killed, so nobody knows what it did. The message comes "
                    "again; with on_lapse: park, a person looks whether the command took effect"
                ) from None
            if status:
                raise StepFailed(f"{described_status(status)}{tail_of(err)}")
            out.seek(0)
            return out.read()

    def _drop(self, watchdog: Watchdog) -> None:
        """Let the next command start another watchdog."""
        with self._lock:
            if self._watchdog is watchdog:
                self._watchdog = None
                watchdog.close()

    async def close(self) -> None:
        """End the watchdog."""
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None


def _text(find: PathFinder, message: PipelineMessage) -> str:
    value = find(message)
    if value is None:
        raise ValueError(f"{find.expression!r} finds nothing in this message")
    text = text_of(value)
    if "\0" in text:
        raise ValueError(f"{find.expression!r} holds a NUL character, which a command cannot get")
    return text


def _check_options(arguments: list[str | PathFinder], argv: list[str]) -> None:
    """Refuse a text of a message that a program could take for an option."""
    for argument, text in zip(arguments, argv, strict=True):
        if argument == "--":
            return
        if isinstance(argument, PathFinder) and text.startswith("-") and not _NEGATIVE(text):
            raise ValueError(
                f"{argument.expression!r} begins with a dash, and the command could take it for an option. Put -- before it in the "
                "command"
            )
