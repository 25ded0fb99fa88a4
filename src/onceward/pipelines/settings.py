"""The types that the model of a pipeline's file is made of."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from onceward.core.arguments import DURATION, seconds
from onceward.pipelines.marks import Marked
from onceward.pipelines.paths import MESSAGE, KeyFinder, PathFinder


class ValueReading(NamedTuple):
    """How a plain value of the file becomes what the parts of a pipeline use.

    Attributes:
        make: returns it; raises ValueError.
        instead: what stands for a value with a mistake. The pipeline does not run then.
    """

    make: Callable[[Any], Any]
    instead: Any


def _duration(value: float | str, least: float = 0.0) -> float:
    if (length := seconds(value)) < least:
        raise ValueError(f"{value!r} is too short: give at least {least:g} s")
    return length


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


# For the type checker, what a part gets. For msgspec, what the file says.
if TYPE_CHECKING:
    Expression = PathFinder
    KeyExpression = KeyFinder
    Seconds = float
    SomeSeconds = float
    Regex = re.Pattern[str]
else:
    _PATH = Meta(
        description="A JMESPath expression (jmespath.org) that begins with message or meta.",
        min_length=1,
        extra_json_schema={"format": "jmespath"},
    )
    _SECONDS = Meta(
        description="Seconds, or a number with ms, s, m, h or d, as in 90s or 14d.",
        extra_json_schema={"pattern": f"^{DURATION}$", "minimum": 0},
    )
    Expression = Annotated[str, _PATH, ValueReading(PathFinder, MESSAGE)]
    KeyExpression = Annotated[str, _PATH, ValueReading(partial(KeyFinder, option="key"), None)]
    Seconds = Annotated[int | float | str, _SECONDS, ValueReading(_duration, 60.0)]
    SomeSeconds = Annotated[int | float | str, _SECONDS, ValueReading(partial(_duration, least=0.001), 60.0)]
    Regex = Annotated[str, ValueReading(_regex, re.compile(""))]
Text = Annotated[str, Meta(min_length=1)]
Address = Annotated[str, Meta(description="An address of the outbox, such as sqs:orders.", min_length=1)]


def as_written(default: str) -> Any:
    """Return a default as the file would say it."""
    return default


def choices(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    bare = bare_of(annotation)
    return get_args(bare) if annotation is bare and get_origin(bare) in {Union, UnionType} else (annotation,)


def bare_of(annotation: Any) -> Any:
    """Return a type without its annotations."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def reading_of(annotation: Any, value: object) -> ValueReading | None:
    """Return how a plain value of a type is read; None if it stays as it is."""
    options = choices(annotation)
    if not isinstance(value, str | int | float) or any(
        value in get_args(a) for a in options if get_origin(a) is Literal
    ):
        return None
    marks = (mark for option in options for mark in getattr(option, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, ValueReading)), None)


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """What a part of the file says. Its docstring, with its attributes, is the reference (``docstrings.py``)."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):  # the defaults
            value = getattr(self, field.name)
            if (reading := reading_of(field.type, value)) is not None:
                setattr(self, field.name, reading.make(value))


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


def settings_in(*kinds: type[Settings]) -> Iterator[type[Settings]]:
    """Yield these settings and all that their fields are made of, each once."""
    seen: set[type[Settings]] = set()
    waiting = list(kinds)
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        yield one
        for field in msgspec.structs.fields(one):
            waiting += _settings_of(field.type)


def _settings_of(annotation: Any) -> list[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [kind for one in get_args(annotation) for kind in _settings_of(one)]
