"""Calls a Python function for each line instead of running a command."""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from onceward.claim.handler import handler_of
from onceward.claim.held import current
from onceward.core.arguments import check_type
from onceward.keys.paths import Roots
from onceward.keys.signatures import given_by_place, roots_of
from onceward.pipe.lines import LINE
from onceward.pipe.outcomes import LineJob, Output, Value
from onceward.results.codec import Codec


class Function:
    """A Python function, given the parsed line.

    It prints to the caller's output. Only its return value is recorded as the result.

    Args:
        target: the function, or ``module:function``; the module may lie in the working directory.

    Raises:
        ValueError: there is no such function, or its results cannot be recorded.
    """

    def __init__(self, target: str | Callable[..., object]) -> None:
        check_type("Function(target)", target, (str, Callable), "a function, or 'module:function'")
        self._function = imported(target) if isinstance(target, str) else target
        place = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
        self.target = f"--call {place}"
        self.identity = f"call\0{place}"
        try:
            handler = handler_of(self._function)
            self.codec: Codec | None = Codec(handler.annotation)
        except TypeError as error:
            raise ValueError(f"{self.target}: {error}") from error
        self._parameter = handler.parameter
        takes = given_by_place(self._function, handler.claim)[:1]
        self.roots: Roots = roots_of(self._function, takes, handler.claim)._replace(fixed=LINE.start)

    def prepare(self, value: object) -> object:
        return value

    def handle(self, job: LineJob) -> object:
        """Call it for one line; raises what it raises."""
        try:
            arguments = (job.given,)
            args, kwargs = (
                (arguments, {}) if self._parameter is None else self._parameter.fill(current(), arguments, {})
            )
            value = self._function(*args, **kwargs)
            if hasattr(value, "__await__"):
                value = asyncio.run(_awaited(cast("Awaitable[object]", value)))
        except BaseException as error:
            job.reason = _described(error)
            raise
        job.output = Value(value)
        return value

    def replayed(self, value: object) -> Output:
        """Return the output of an earlier call."""
        return Value(value)

    def close(self) -> None:
        pass


async def _awaited(value: Awaitable[object]) -> object:
    return await value


def imported(target: str, option: str = "--call ", fits: Callable[[object], bool] = callable) -> Any:
    """Return the function, or what else fits, that ``module:name`` names; raises ValueError. ``option`` begins its text."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ValueError(f"{option}{target}: write module:name, as in {option}charge:charge")
    sys.path.insert(0, str(Path.cwd()))
    try:
        value: object = import_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{option}{target}: the module cannot be imported: {_described(error)}") from error
    for part in name.split("."):
        value = getattr(value, part, None)
    if not fits(value):
        raise ValueError(f"{option}{target}: {module} has no {name}")  # of the user's text, not of a type
    return value


def _described(error: BaseException) -> str:
    """Return what was raised, and where, in one line."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} ({Path(error.filename).name}:{error.lineno})"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename]
    last = frames[-1] if frames else None
    if last is None or last.filename == __file__:  # the module was not found: no line of the user's is wrong
        return text
    return f"{text} ({Path(last.filename).name}:{last.lineno})"
