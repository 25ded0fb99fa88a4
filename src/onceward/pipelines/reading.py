"""Reads the tree of a file into its model. It goes on after a step or a sink with a mistake, so that one look shows more than one."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from onceward.lazily import at
from onceward.pipelines.marks import Marked, Mistake
from onceward.pipelines.model import KEYS, PipelineFile
from onceward.pipelines.settings import Chosen, KeyFinder, PathFinder, Regex, Seconds, Settings, regex
from onceward.pipelines.sinks import SINKS
from onceward.pipelines.sources import SOURCES
from onceward.pipelines.steps import STEPS

TABLES: Final = {"step": STEPS, "sink": SINKS, "source": SOURCES}


def schema() -> str:
    """Return the JSON Schema of the file, as text. ``make api`` makes it from the model (docs/generated/pipeline_schema.py)."""
    return Path(__file__).with_name("schema.json").read_text(encoding="utf-8")


@cache
def kind(table: str, name: str) -> type[Settings]:
    """Return the class of the settings of a kind; raises KeyError if there is none."""
    return cast("type[Settings]", at(TABLES[table][name]))


S = TypeVar("S", bound=Settings)
_FIELD: Final = re.compile(r"Object contains unknown field `(.+)`")
_PART: Final = re.compile(r"\.(\w+)|\[(\d+)\]")  # of msgspec's path, such as .headers[0]


class _NotReadable(Exception):
    """A part has a mistake, which is noted."""


class ModelReader:
    """Reads one file.

    Attributes:
        mistakes: those that were found: one of each step and sink, and the first of the rest.
    """

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self._parts: dict[int, Marked] = {}  # mappings and lists, by the id of their values

    def read(self, marked: Marked) -> PipelineFile | None:
        """Return the model, without the steps and sinks that have mistakes; None if it cannot be read."""
        self._remember(marked)
        try:
            return self._converted(marked, PipelineFile)
        except _NotReadable:
            return None

    def _remember(self, marked: Marked) -> None:
        if isinstance(marked.value, dict | list):
            self._parts[id(marked.value)] = marked
        for part in marked.parts.values():
            self._remember(part)

    def _converted(self, marked: Marked, settings: type[S], beside: dict[str, object] | None = None) -> S:
        """Return the settings in a mapping, or those beside a type; raises _NotReadable."""
        value = beside if beside is not None else {} if marked.value is None else marked.value  # "stdout:" has none
        try:
            return msgspec.convert(value, settings, dec_hook=self._made)
        except msgspec.ValidationError as error:
            text, _, tail = str(error).partition(" - at `$")
            path: list[str | int] = [name or int(number) for name, number in _PART.findall(tail)]
            if (unknown := _FIELD.match(text)) is not None:
                path.append(unknown[1])
            self.mistakes.append(Mistake(marked.place_of(*path), marked.told(text, *path)))
            raise _NotReadable from error

    def _made(self, kind_of: Any, value: object) -> object:
        """Return a value of a type that msgspec does not know; raises ValueError."""
        if kind_of in {PathFinder, KeyFinder, Regex}:
            if not isinstance(value, str):
                raise ValueError(f"give a text, and not {value!r}"[:80])
            return regex(value) if kind_of == Regex else kind_of(value)
        if issubclass(kind_of, Seconds):
            return kind_of(value)
        marked = self._parts.get(id(value))
        if issubclass(kind_of, Chosen):
            if marked is None:
                raise ValueError(f"a {kind_of.table} is a mapping with its type")
            return self._chosen(marked, kind_of)
        if value is not None and not isinstance(value, list):
            raise ValueError("a list is needed here, each of its parts with a dash")
        return kind_of(self._each(marked, kind_of.of))

    def _each(self, marked: Marked | None, choice: type[Chosen]) -> Iterator[Chosen]:
        for part in () if marked is None else marked.parts.values():
            with suppress(_NotReadable):
                yield self._chosen(part, choice)

    def _chosen(self, marked: Marked, choice: type[Chosen]) -> Chosen:
        """Return one step, sink or source; raises _NotReadable."""
        one, table = choice.table, TABLES[choice.table]
        kinds = [str(name) for name in marked.parts if name in table] if isinstance(marked.value, dict) else []
        if len(kinds) != 1:
            place = marked.parts[kinds[1]].name_place if kinds else marked.place
            names = ", ".join(sorted(table))
            text = f"two types, {kinds[0]} and {kinds[1]}: make two of it" if kinds else f"one of these types: {names}"
            self.mistakes.append(Mistake(place, f"a {one} is a mapping with {text}"))
            raise _NotReadable
        (name,) = kinds
        settings = self._converted(marked.parts[name], kind(one, name))
        keys = self._converted(marked, KEYS[one], {n: value for n, value in marked.value.items() if n != name})
        return choice(name, settings, keys, marked)
