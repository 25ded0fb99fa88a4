"""The file of a pipeline, from its model: every setting of every part, step, sink and source."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from generated.markdown import code, table
from generated.pipeline_schema import settings_in
from onceward.docstrings import attributes, summary
from onceward.pipelines.model import KEYS, PipelineFile
from onceward.pipelines.reading import TABLES, kind
from onceward.pipelines.settings import Chosen, KeyFinder, PathFinder, Regex, Seconds, Settings, SinkList, StepList

_HEAD = """## The whole file

`onceward run FILE` runs a pipeline: one source, steps, and sinks. `onceward vet FILE` tells mistakes with their line and column: of form, one in each step and sink, and the first of the rest. Correct them, and run it again. `onceward vet --schema` prints the JSON Schema, with which
editors complete and check the file; name it in the file's first line: `# yaml-language-server: $schema=pipeline.schema.json`.
[The schema of this version](pipeline.schema.json) is on this site, too.

- Without quotes, `true`, `false`, `null` and the numbers of JSON are not text. All else is, also `on`, `yes`, dates and `007`. `${NAME}` and `${NAME:-default}` in a text are variables
  of the environment.
- Relative paths begin at the folder of the file, also in `sqlite:///`. Only that of `--store` begins in the current folder. Python modules can be there, too.
- Expressions are [JMESPath](https://jmespath.org). They begin with `message` or `meta`. `message` is the
  message's data at that step. `meta` has the message's `source`, `id`, `key`, `group`, `destination`, and `raw`, the record as it
  came. A constant is written `'text'` or `` `5` ``.

### How often an effect is made
Each message has one claim in the ledger. Its key is that of `guard:`, or else the source's own id. Steps without an effect run on
each attempt. A step with an effect (`call`, `run`, `http` and others) is recorded before the next one begins. After
a crash or an error, the next attempt gets the recorded result, and does not run the step again.

After a crash between an effect and its record, nobody knows whether the effect was made. The step's setting `on_lapse` says what
to do then. The derived key of a step is the same on every attempt, so a downstream that accepts idempotency keys makes the effect
once.

A guard within the steps, or around a sink, has its own claim. The guard's record keeps two things: the message after the guarded
steps, and the delivery that made the record. With `on_duplicate: drop`, the message of any other delivery ends at the guard. The
delivery that made the record always continues, also after a crash, so no message is lost after a guard.

A failed message comes again: from a queue after a pause, from a file in the next run. A sink of the [outbox](outbox.md) sends its
message only if the claim completes. The message has a derived key.

"""
_TITLES = {
    "step": (
        "Steps",
        "Each of the headings below is a type of step. Give the type with its settings, as in `filter: {where: message.id}`.",
    ),
    "sink": ("Sinks", "Each of the headings below is a type of sink, with its settings."),
    "source": ("Sources", "Each of the headings below is a type of source, with its settings."),
}
_BESIDE = {"step": "Beside its type, a step can have", "sink": "Beside its type, a sink can have"}


def part() -> str:
    """Return the sections."""
    parts = [_HEAD, "### At the top\n\n", _settings(PipelineFile)]
    told: set[type[Settings]] = {PipelineFile, *KEYS.values()}
    for one in settings_in(PipelineFile):
        if one not in told:
            parts.append(_part("###", _name(one), one))
            told.add(one)
    for name, (title, text) in _TITLES.items():
        parts.append(f"## {title}\n\n{text}\n\n")
        if name in _BESIDE:
            parts += [f"{_BESIDE[name]}:\n\n", _settings(KEYS[name])]
            parts += [_part("###", _name(one), one) for one in settings_in(KEYS[name]) if one not in told]
            told.update(settings_in(KEYS[name]))
        for type_name in sorted(TABLES[name]):
            parts.append(_part("###", type_name, kind(name, type_name)))
            inner = [
                one
                for one in settings_in(kind(name, type_name))
                if one not in told and one is not kind(name, type_name)
            ]
            parts += [_part("####", _name(one), one) for one in inner]
            told.update(inner)
    return "".join(parts)


def _part(level: str, title: str, settings: type[Settings]) -> str:
    return f"{level} {title}\n\n{summary(settings)}\n\n".replace("``", "`") + _settings(settings)


def _settings(settings: type[Settings]) -> str:
    fields = msgspec.structs.fields(settings)
    if not fields:
        return ""
    said = attributes(settings)
    rows = [
        (code(one.encode_name), said.get(one.name) or _described(one.type), _default(one), _kind(one.type))
        for one in fields
    ]
    return table(("setting", "meaning", "default", "type"), rows) + "\n"


def _described(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        for one in reversed(annotation.__metadata__):
            if isinstance(one, Meta) and one.description:
                return one.description
    return ""


def _default(field: Any) -> str:
    if field.required:
        return "must be given"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return ""
    return "" if value in (None, [], {}, ()) else code(str(value).lower() if isinstance(value, bool) else value)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in {Union, UnionType}:
        return " or ".join(dict.fromkeys(_kind(one) for one in inner if one is not NoneType))
    if origin is Literal:
        return " or ".join(code(one) for one in inner)
    if origin is list:
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return f"mapping to {_kind(inner[1])}"
    if isinstance(annotation, type) and (own := _own(annotation)):
        return own
    return {str: "text", int: "whole number", float: "number", Regex: "text", bool: "`true` or `false`"}.get(
        annotation, "anything"
    )


def _own(kind_of: type) -> str | None:
    """Return the name of a type that only a file has."""
    if issubclass(kind_of, PathFinder | KeyFinder):
        return "expression"
    if issubclass(kind_of, Seconds):
        return " or ".join(["seconds", *map(code, kind_of.words)])
    if issubclass(kind_of, StepList | SinkList):
        return "list of steps" if issubclass(kind_of, StepList) else "list of sinks"
    if issubclass(kind_of, Chosen):
        return f"a {kind_of.table}"
    if issubclass(kind_of, Settings):
        return f"[{_name(kind_of)}](#{_name(kind_of).replace(' ', '-')})"
    return None


def _name(settings: type[Settings]) -> str:
    """Return the words of a class's name, such as "field retention"."""
    name = settings.__name__.removesuffix("Settings")
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
