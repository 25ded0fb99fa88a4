"""The JSON Schema of a pipeline's file, from its model. `make api` writes it, a test compares, and `onceward vet --schema` prints it."""

import re
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec

from onceward.core.arguments import DURATION
from onceward.docstrings import describe
from onceward.pipelines.model import KEYS, PipelineFile
from onceward.pipelines.reading import TABLES, kind
from onceward.pipelines.settings import KeyFinder, PathFinder, Seconds, Settings, SinkList, StepList

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
