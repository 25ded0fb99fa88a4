"""Reads the tree of a file into its model. It goes on after a mistake, so that one look shows all of them."""

from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Any, Final, TypeVar, cast, get_args, get_origin

import msgspec

from onceward.docstrings import describe
from onceward.lazily import at
from onceward.pipelines.marks import Marked, Mistake, Position
from onceward.pipelines.model import KEYS, PipelineFile
from onceward.pipelines.settings import (
    Chosen,
    Settings,
    SinkList,
    StepList,
    bare_of,
    choices,
    reading_of,
    settings_in,
)
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
        describe(definitions[model.__name__], model)
    for table, by_name in kinds.items():
        definitions[table.title()] = _choice(table, by_name, definitions)
    for definition in definitions.values():
        _tidy(definition)
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


def _of(kind_of: type) -> dict[str, Any]:
    """Return the schema of a type that only a file has."""
    if issubclass(kind_of, StepList | SinkList):
        return {"type": ["array", "null"], "items": {"$ref": f"#/$defs/{kind_of.of.table.title()}"}}
    if issubclass(kind_of, Chosen):
        return {"$ref": f"#/$defs/{kind_of.table.title()}"}
    raise NotImplementedError(kind_of.__name__)


def _tidy(definition: dict[str, Any]) -> None:
    """Take out what is only about Python."""
    definition.pop("title", None)
    for property_ in definition.get("properties", {}).values():
        if "default" in property_ and not isinstance(property_["default"], str | int | float | bool | None):
            del property_["default"]


TABLES = {"step": STEPS, "sink": SINKS, "source": SOURCES}


@cache
def kind(table: str, name: str) -> type[Settings]:
    """Return the class of the settings of a kind; raises KeyError if there is none."""
    return cast("type[Settings]", at(TABLES[table][name]))


S = TypeVar("S", bound=Settings)
_WRONG: Final = object()  # a value that could not be read; its mistake is noted


class ModelReader:
    """Reads one file.

    Attributes:
        mistakes: all mistakes that were found.
    """

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def read(self, marked: Marked, settings: type[S]) -> S | None:
        """Return the settings; None if nothing of them can be read.

        With mistakes it has only what could be read, so that this can be checked, too: steps with mistakes are left out, wrong
        options have their defaults, and what must be there can be None.
        """
        value = self._settings(marked, settings, whole=False)
        return None if value is _WRONG else cast("S", value)

    def _settings(self, marked: Marked, settings: type[Settings], *, whole: bool = True) -> object:
        """Return the settings in a mapping. ``whole`` is whether all that must be there is needed."""
        if marked.value is None:
            marked = msgspec.structs.replace(marked, value={})  # "stdout:" has no settings
        if not isinstance(marked.value, dict):
            return self._mistake(marked.place, f"a mapping is needed here, not {_shape(marked.value)}")
        fields = {field.encode_name: field for field in msgspec.structs.fields(settings)}
        values: dict[str, object] = {}
        for name, part in marked.value.items():
            if name not in fields:
                self._mistake(part.name_place, _unknown(name, list(fields)))
            elif (value := self._value(part, fields[name].type)) is not _WRONG:
                values[fields[name].name] = value
                if value == () and fields[name].required:
                    self.mistakes.append(Mistake(part.place, "there are no steps here", is_warning=True))
        for name, field in fields.items():
            if field.required and field.name not in values:
                if name not in marked.value:
                    self._mistake(marked.place, f"{name}: is missing")
                if whole:
                    return _WRONG
                values[field.name] = None
        try:
            return settings(**values)
        except (ValueError, TypeError) as error:  # its own check
            return self._mistake(marked.place, marked.told(str(error)))

    def _value(self, marked: Marked, annotation: Any) -> object:
        """Return a value of a type. A mistake in what it means, and not in its form, is noted where its name stands."""
        options = choices(annotation)
        if marked.value is None and NoneType in options:
            return None
        for option in map(bare_of, options):
            origin, inner = get_origin(option), get_args(option)
            if isinstance(option, type):
                if issubclass(option, StepList | SinkList):
                    return self._list(marked, option)
                if issubclass(option, Chosen):
                    return self._choose(marked, option)
                if issubclass(option, Settings) and (isinstance(marked.value, dict) or len(options) == 1):
                    return self._settings(marked, option)
            elif origin in {dict, list} and isinstance(marked.value, origin) and _has_parts(inner[-1]):
                names = marked.value if origin is dict else range(len(marked.value))
                parts = {n: self._value(marked.value[n], inner[-1]) for n in names}
                return _WRONG if _WRONG in parts.values() else parts if origin is dict else [*parts.values()]
        try:
            value = msgspec.convert(marked.plain(), annotation)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            return self._mistake(_at(marked, path), marked.told(_plainly(text)))
        if (reading := reading_of(annotation, value)) is None:
            return value
        try:
            return reading.make(value)
        except ValueError as error:
            self._mistake(marked.name_place, marked.told(str(error)))
            return reading.instead

    def _list(self, marked: Marked, kind_of_list: type[StepList | SinkList]) -> object:
        if not isinstance(marked.value, list | None):
            return self._mistake(
                marked.place, f"a list is needed here, each of its parts with a dash, not {_shape(marked.value)}"
            )
        choices = [self._choose(part, kind_of_list.of) for part in marked.value or ()]
        return cast("type[tuple[object, ...]]", kind_of_list)(one for one in choices if one is not _WRONG)

    def _choose(self, marked: Marked, choice: type[Chosen]) -> object:
        one, table = choice.table, TABLES[choice.table]
        if not isinstance(marked.value, dict):
            return self._mistake(marked.place, f"a {one} is a mapping with its type, as in {next(iter(table))}: ...")
        keys = KEYS[one]
        beside = [field.encode_name for field in msgspec.structs.fields(keys)]
        kinds = [name for name in marked.value if name in table and name not in beside]
        others = [name for name in marked.value if name not in table and name not in beside]
        if len(kinds) > 1:
            place = marked.value[kinds[1]].name_place
            return self._mistake(place, f"one {one} has two types, {kinds[0]} and {kinds[1]}: make two of it")
        if not kinds:
            place = marked.value[others[0]].name_place if others else marked.place
            names = ", ".join(sorted(table))
            if others and get_close_matches(others[0], table, 1):
                return self._mistake(place, _unknown(others[0], list(table)))
            fault = f"{_unknown(others[0], [])}: " if others else ""
            return self._mistake(place, f"{fault}a {one} has one of these types: {names}")
        name = kinds[0]
        own = self._settings(marked.value[name], kind(one, name))
        others_of = {n: part for n, part in marked.value.items() if n != name}
        rest = self._settings(msgspec.structs.replace(marked, value=others_of), keys)
        if own is _WRONG or rest is _WRONG:
            return _WRONG
        return choice(name, cast("Settings", own), cast("Settings", rest), marked)

    def _mistake(self, place: Position, text: str) -> object:
        self.mistakes.append(Mistake(place, text))
        return _WRONG


def _has_parts(annotation: Any) -> bool:
    """Return whether values of a type are read, and not only converted."""
    return any(
        reading_of(option, "") is not None or (isinstance(bare := bare_of(option), type) and issubclass(bare, Settings))
        for option in choices(annotation)
    )


def _at(marked: Marked, path: str) -> Position:
    """Return the place of a part by msgspec's path, such as ``.headers[0]`` or ``[...]``."""
    names: list[str | int] = []
    for part in path.rstrip("`").replace("[", ".[").split("."):
        if part.startswith("[") and part[1:-1].isdigit():
            names.append(int(part[1:-1]))
        elif part and not part.startswith("["):
            names.append(part)
    return marked.place_of(*names)


_WORDS: Final = {
    "`object`": "a mapping",
    "`array`": "a list",
    "`str`": "a text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`null`": "nothing",
}


def _plainly(text: str) -> str:
    """Return msgspec's text in the words of YAML."""
    for old, new in _WORDS.items():
        text = text.replace(old, new)
    return text[:1].lower() + text[1:]


def _unknown(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"{name!r} is not known here" + (f"; is it {close[0]!r}?" if close else "")


def _shape(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "nothing" if value is None else f"{value!r}"[:60]
