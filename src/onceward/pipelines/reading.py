"""Reads the tree of a file into its model. It goes on after a step or a sink with a mistake, so that one look shows more than one."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec

from onceward.core.arguments import DURATION
from onceward.docstrings import describe
from onceward.lazily import at
from onceward.pipelines.marks import Marked, Mistake
from onceward.pipelines.model import KEYS, PipelineFile
from onceward.pipelines.paths import KeyFinder, PathFinder
from onceward.pipelines.settings import Chosen, Regex, Seconds, Settings, SinkList, StepList, regex, settings_in
from onceward.pipelines.sinks import SINKS
from onceward.pipelines.sources import SOURCES
from onceward.pipelines.steps import STEPS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema of the whole file."""
    kinds = {table: {name: kind(table, name) for name in sorted(TABLES[table])} for table in TABLES}
    models = list(
        settings_in(PipelineFile, *(one for table in kinds.values() for one in table.values()), *KEYS.values())
    )
    _, definitions = msgspec.json.schema_components(models, schema_hook=_of, ref_template="#/$defs/{name}")
    for model in models:
        _describe_fields(definitions[model.__name__], model)
    for table, by_name in kinds.items():
        definitions[table.title()] = _choice(table, by_name, definitions)
    whole = definitions.pop("PipelineFile")
    return {"$schema": DIALECT, **whole, "title": "A pipeline of onceward", "$defs": dict(sorted(definitions.items()))}


def text() -> str:
    """Return the schema as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


def _choice(table: str, by_name: dict[str, type[Any]], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a mapping with one kind, and what can stand beside it."""
    keys = definitions.pop(KEYS[table].__name__)
    properties = {**keys.get("properties", {})}
    for name, settings in by_name.items():
        reference = {"$ref": f"#/$defs/{settings.__name__}"}
        needs = definitions[settings.__name__].get("required")
        properties[name] = reference if needs else {"anyOf": [reference, {"type": "null"}]}
        properties[name]["description"] = definitions[settings.__name__].get("description", "")
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in by_name],
    }


def _of(kind_of: Any) -> dict[str, Any]:
    """Return the schema of a type that only a file has."""
    if kind_of in {PathFinder, KeyFinder}:
        text = "A JMESPath expression (jmespath.org) that begins with message or meta."
        return {"type": "string", "format": "jmespath", "minLength": 1, "description": text}
    if kind_of is re.Pattern:
        return {"type": "string", "format": "regex"}
    if issubclass(kind_of, Seconds):
        forms: list[dict[str, Any]] = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{DURATION}$"}]
        words = [{"enum": [*kind_of.words]}] if kind_of.words else []
        return {"anyOf": forms + words, "description": "Seconds, or a number with ms, s, m, h or d, as in 90s or 14d."}
    if issubclass(kind_of, StepList | SinkList):
        return {"type": ["array", "null"], "items": {"$ref": f"#/$defs/{kind_of.of.table.title()}"}}
    return {"$ref": f"#/$defs/{kind_of.table.title()}"}


def _describe_fields(definition: dict[str, Any], model: type[Settings]) -> None:
    """Put what docstrings say into a definition, and defaults as the file says them."""
    definition.pop("title")
    describe(definition, model)
    for field in msgspec.structs.fields(model):
        property_ = definition["properties"][field.encode_name]
        default = None if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if isinstance(default, Seconds | PathFinder):
            property_["default"] = str(default)
        elif not isinstance(property_.get("default"), str | int | float | None):
            del property_["default"]  # an empty list


TABLES = {"step": STEPS, "sink": SINKS, "source": SOURCES}


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
