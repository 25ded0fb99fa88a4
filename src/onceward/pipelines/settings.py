"""The types that the model of a pipeline's file is made of."""

import math
import re
from typing import Annotated, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta

from onceward.core.arguments import seconds
from onceward.pipelines.marks import Marked
from onceward.pipelines.paths import KeyFinder, PathFinder


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
