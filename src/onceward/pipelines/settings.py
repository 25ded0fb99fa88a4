"""The types that the model of a pipeline's file is made of."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta

from onceward.pipelines.marks import Marked

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST: Final = 1e17  # seconds, more than the longest text
_DURATION: Final = r"[0-9]{1,12}(\.[0-9]{1,6})? ?(ms|s|m|min|h|d)?"

Expression = Annotated[
    str,
    Meta(
        description="A JMESPath expression (jmespath.org) that begins with message or meta.",
        min_length=1,
        extra_json_schema={"format": "jmespath"},
    ),
]
Seconds = Annotated[
    int | float | str,
    Meta(
        description="Seconds, or a number with ms, s, m, h or d, as in 90s or 14d.",
        extra_json_schema={"pattern": f"^{_DURATION}$", "minimum": 0},
    ),
]
Address = Annotated[str, Meta(description="An address of the outbox, such as sqs:orders.", min_length=1)]


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a part of the file says. Its docstring and its fields' descriptions are the reference."""


class Chosen:
    """One of a table's kinds, with its settings: ``{kafka: {topic: orders}, name: in}``.

    Attributes:
        kind: its name in the table.
        settings: of that kind.
        keys: what stands beside it, such as ``name``.
        marked: the whole mapping in the file.
    """

    table = ""  # whose kinds it can be: "steps", "sinks" or "sources"

    __slots__ = ("keys", "kind", "marked", "settings")

    def __init__(self, kind: str, settings: Settings, keys: Settings, marked: Marked) -> None:
        self.kind = kind
        self.settings = settings
        self.keys = keys
        self.marked = marked


class StepChoice(Chosen):
    """One step."""

    table = "steps"


class SinkChoice(Chosen):
    """One sink."""

    table = "sinks"


class SourceChoice(Chosen):
    """One source."""

    table = "sources"


class StepList(tuple[StepChoice, ...]):
    """Steps in their order."""

    __slots__ = ()
    of = StepChoice


class SinkList(tuple[SinkChoice, ...]):
    """Sinks; each gets the message."""

    __slots__ = ()
    of = SinkChoice


def seconds(value: float | str) -> float:
    """Return the seconds of a :data:`Seconds`; raises ValueError if it is none."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r}: give seconds, or a number with a unit, as in 90s, 10m, 1h or 14d")
    if isinstance(value, int | float):
        if not 0 <= value <= _LONGEST:
            raise ValueError(f"give seconds from 0 to {_LONGEST:g}")
        return float(value)
    match = re.fullmatch(r"([0-9.]+) ?([a-z]*)", value)
    if match is None or not re.fullmatch(_DURATION, value):
        raise ValueError(f"{value!r}: give seconds, or a number with ms, s, m, h or d, as in 90s, 10m, 1h or 14d")
    return float(match[1]) * _UNITS[match[2]]


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
    return [found for one in get_args(annotation) for found in _settings_of(one)]


def fields_of(kind: type[Settings]) -> Iterator[tuple[str, Any]]:
    """Yield the name in the file of each field, and msgspec's description of it."""
    for field in msgspec.structs.fields(kind):
        yield field.encode_name, field
