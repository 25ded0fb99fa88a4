"""The types that the model of a pipeline's file is made of."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from onceward.core.arguments import DURATION
from onceward.pipelines.marks import Marked

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
        extra_json_schema={"pattern": f"^{DURATION}$", "minimum": 0},
    ),
]
Address = Annotated[str, Meta(description="An address of the outbox, such as sqs:orders.", min_length=1)]


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a part of the file says. Its docstring, with its attributes, is the reference (``docstrings.py``)."""


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
