"""The JSON Schema of a pipeline's file, made from the model. Editors complete and check with it."""

from typing import Any, Final

import msgspec

from onceward.pipelines.model import KEYS, PipelineFile
from onceward.pipelines.reading import TABLES, kind
from onceward.pipelines.settings import Chosen, SinkList, StepList, settings_in

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES: Final = "#/$defs/{name}"
_CHOICES: Final = {"steps": "Step", "sinks": "Sink", "sources": "Source"}


def schema() -> dict[str, Any]:
    """Return the schema of the whole file."""
    kinds = {table: {name: kind(table, name) for name in sorted(TABLES[table])} for table in TABLES}
    models = list(
        settings_in(PipelineFile, *(one for table in kinds.values() for one in table.values()), *KEYS.values())
    )
    described, definitions = msgspec.json.schema_components(models, schema_hook=_of, ref_template=_REFERENCES)
    del described  # references to the definitions
    for table, choices in kinds.items():
        definitions[_CHOICES[table]] = _choice(table, choices, definitions)
    for definition in definitions.values():
        _tidy(definition)
    whole = definitions.pop("PipelineFile")
    return {"$schema": DIALECT, **whole, "title": "A pipeline of onceward", "$defs": dict(sorted(definitions.items()))}


def text() -> str:
    """Return the schema as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


def _choice(table: str, choices: dict[str, type[Any]], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a mapping with one kind, and what can stand beside it."""
    keys = definitions.pop(KEYS[table].__name__)
    properties = {**keys.get("properties", {})}
    for name, settings in choices.items():
        reference = {"$ref": f"#/$defs/{settings.__name__}"}
        needs = definitions[settings.__name__].get("required")
        properties[name] = reference if needs else {"anyOf": [reference, {"type": "null"}]}
        properties[name]["description"] = definitions[settings.__name__].get("description", "")
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in choices],
    }


def _of(kind_of: type) -> dict[str, Any]:
    """Return the schema of a type that only a file has."""
    if issubclass(kind_of, StepList | SinkList):
        return {"type": ["array", "null"], "items": {"$ref": f"#/$defs/{_CHOICES[kind_of.of.table]}"}}
    if issubclass(kind_of, Chosen):
        return {"$ref": f"#/$defs/{_CHOICES[kind_of.table]}"}
    raise NotImplementedError(kind_of.__name__)


def _tidy(definition: dict[str, Any]) -> None:
    """Take out what is only about Python."""
    definition.pop("title", None)
    for property_ in definition.get("properties", {}).values():
        if "default" in property_ and not isinstance(property_["default"], str | int | float | bool | None):
            del property_["default"]
