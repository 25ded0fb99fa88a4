"""The types that the model of a pipeline's file is made of, and expressions over a message: JMESPath that begins with ``message`` or ``meta``."""

import math
import re
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, cast

import jmespath
import msgspec
from jmespath.exceptions import ArityError, JMESPathError, UnknownFunctionError
from jmespath.visitor import TreeInterpreter
from msgspec import Meta

from onceward.core.arguments import seconds
from onceward.errors import KeyMissing
from onceward.keys.expressions import WHOLE, roots_of
from onceward.keys.paths import Roots, StrictPath, fault
from onceward.pipelines.call import PipelineMessage
from onceward.pipelines.marks import Marked

ROOTS: Final = Roots(("message", "meta"), "begins with another name than message and meta", "message")
_INTERPRETER: Final = TreeInterpreter()


class PathFinder:
    """A compiled expression.

    Raises:
        ValueError: it is not valid, or begins with another name.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        try:
            self._parsed = _parsed(expression)
            names = roots_of(self._parsed)
        except JMESPathError as error:
            raise ValueError(f"not a JMESPath expression: {_short(error)}") from error
        except RecursionError:
            raise ValueError("not a JMESPath expression that can be read: it is nested too deeply") from None
        wrong = fault("it", expression, names, ROOTS) if names.difference(ROOTS.names, {WHOLE}) else None
        if wrong is not None:
            raise ValueError(wrong.replace("it=", ""))

    def __str__(self) -> str:
        return self.expression

    def __call__(self, message: PipelineMessage) -> Any:
        """Return what it finds in a message, or None.

        Raises:
            ValueError: a function of it was given a value of another kind.
        """
        try:
            return _INTERPRETER.visit(self._parsed, {"message": message.data, "meta": message.meta})
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{self.expression!r} cannot be read from this message: {_short(error)}") from error

    def holds(self, message: PipelineMessage) -> bool:
        """Return whether what it finds counts as true in JMESPath: not null, false, "", [] or {}."""
        value = self(message)
        return not (value is None or value is False or (isinstance(value, str | list | dict) and not value))


class KeyFinder:
    """An expression for a key or a fingerprint. All its parts must be there.

    Raises:
        ValueError: it is not valid, or not fit for a key.
    """

    def __init__(self, expression: str) -> None:
        self._path = StrictPath(expression, "key", ROOTS)
        _parsed(expression)

    def __call__(self, message: PipelineMessage) -> object:
        """Return the key; raises KeyMissing."""
        value = self._path.search({"message": message.data, "meta": message.meta})
        if value is None:
            raise KeyMissing(f"{self._path.expression!r} finds nothing in this message")
        return value


def _parsed(expression: str) -> Any:
    """Return a parsed expression; raises JMESPathError if it is not valid, or calls a function that there is not."""
    parsed = jmespath.compile(expression).parsed
    try:
        _INTERPRETER.visit(parsed, {"message": None, "meta": {}})
    except (UnknownFunctionError, ArityError):
        raise
    except (TypeError, ValueError, ArithmeticError):
        pass  # it needs a message
    return parsed


def _short(error: Exception) -> str:
    """Return an error in one line. One of JMESPath is told without the value."""
    kind = getattr(error, "function_name", None)
    if kind is not None and hasattr(error, "actual_type"):
        expected = " or ".join(cast("list[str]", getattr(error, "expected_types", [])))
        return f"{kind}() was given {error.actual_type}, and takes {expected}"
    return " ".join(str(error).split())


MESSAGE: Final = PathFinder("message")  # the whole of it


class Seconds(float):
    """A duration: seconds, or a number with a unit, as in 90s or 14d.

    Attributes:
        written: as the file says it.
        words: texts that stand for a number.
    """

    __slots__ = ("written",)
    written: float | str
    words: ClassVar[dict[str, float]] = {}

    def __new__(cls, written: float | str) -> Self:
        """Read a duration; raises ValueError."""
        if not isinstance(written, str | int | float):
            raise ValueError(f"{written!r}: give seconds, or a number with a unit, as in 90s")
        length = cls.words[written] if written in cls.words else seconds(written)
        self = super().__new__(cls, length)
        self.written = written
        return self

    def __str__(self) -> str:
        return str(self.written)


class Retention(Seconds):
    """How long a record stays."""

    words: ClassVar[dict[str, float]] = {"forever": math.inf}


class BusyWait(Seconds):
    """How long to wait for a busy key."""

    words: ClassVar[dict[str, float]] = {"fail": 0.0}


T = TypeVar("T", bound=Seconds | PathFinder)


def given(value: T) -> T:
    """Return a default that the schema and the reference show as the file would say it."""
    return msgspec.field(default_factory=lambda: value)


Expression = PathFinder
KeyExpression = KeyFinder
Regex = re.Pattern[str]


def regex(text: str) -> Regex:
    """Return a compiled regular expression; raises ValueError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


Text = Annotated[str, Meta(min_length=1)]
MessageField = Annotated[str, Meta(pattern=r"^[^.]+(\.[^.]+)*$")]  # such as payment.receipt
Address = Annotated[str, Meta(description="An address of the outbox, such as sqs:orders.", min_length=1)]


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """What a part of the file says. Its docstring, with its attributes, is the reference (``docstrings.py``)."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), Seconds):
                setattr(self, name, float(value))  # what encodes it later knows no subclass


class Chosen:
    """One of a table's kinds, with its settings: ``{kafka: {topic: orders}, name: in}``.

    Attributes:
        kind: its name in the table.
        settings: of that kind.
        keys: what stands beside it, such as ``name``.
        marked: the whole mapping in the file.
    """

    table = ""  # whose kinds it can be: "step", "sink" or "source"

    __slots__ = ("keys", "kind", "marked", "settings")

    def __init__(self, kind: str, settings: Settings, keys: Settings, marked: Marked) -> None:
        self.kind = kind
        self.settings = settings
        self.keys = keys
        self.marked = marked


class StepChoice(Chosen):
    """One step."""

    table = "step"


class SinkChoice(Chosen):
    """One sink."""

    table = "sink"


class SourceChoice(Chosen):
    """One source."""

    table = "source"


class StepList(tuple[StepChoice, ...]):
    """Steps in their order."""

    __slots__ = ()
    of = StepChoice


class SinkList(tuple[SinkChoice, ...]):
    """Sinks; each gets the message."""

    __slots__ = ()
    of = SinkChoice
