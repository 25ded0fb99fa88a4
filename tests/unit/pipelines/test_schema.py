"""The published schema is that of the model, and it takes what the engine takes."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from onceward.pipelines.reading import TABLES, kind, schema, text
from tables import each

LISTED = Path(__file__).parents[3] / "docs" / "reference" / "pipeline.schema.json"
VALID = """
name: orders
source: {ndjson: {files: [orders.ndjson]}}
guard: {key: message.id, retention: {until: message.at, plus: 1h}, lease: 90s}
steps:
  - filter: {where: message.id}
  - name: pay
    call: {function: "json:dumps"}
    into: paid
    on_lapse: {steps: [{map: {to: message}}], made: message.made}
  - switch: {cases: [{when: message.id, steps: [{map: {remove: [a]}}]}]}
sinks: [{stdout: null, when: message.id, guard: {on_busy: 5s}}]
examples: [{name: one, input: {id: 1}}]
"""


def check(document):
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(document))


def test_the_schema_is_up_to_date():
    assert LISTED.read_text() == text(), "the model of pipelines has changed: run `make api`"


def test_the_schema_takes_a_pipeline():
    check(VALID)


@each(
    ("was", "now"),
    [
        ("name: orders", "nam: orders"),
        ("filter:", "filtr:"),
        ("lease: 90s", "lease: 90 weeks"),
        ("into: paid", "into: paid\n    map: {to: message}"),
        ("on_busy: 5s", "on_busy: never"),
    ],
)
def test_the_schema_refuses_what_is_wrong(was, now):
    with pytest.raises(jsonschema.ValidationError):
        check(VALID.replace(was, now))


@pytest.mark.slow
@each(("table", "name"), [(table, name) for table in TABLES for name in TABLES[table]])
def test_each_field_of_each_kind_is_described(table, name):
    settings = kind(table, name)
    described = json.loads(json.dumps(schema()))["$defs"][settings.__name__]
    assert described["description"]
    assert [field for field, one in described.get("properties", {}).items() if not one.get("description")] == []
