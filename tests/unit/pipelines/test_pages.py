"""The pages about pipelines print the files that run, and the published schema takes what the engine takes."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from onceward.cli.app import command_line
from onceward.pipelines.pipeline import examine
from onceward.pipelines.reading import schema, text
from places import EXAMPLES
from printed.pages import section
from tables import each

PAGE = section("docs/how-to/pipelines.md", "Scenarios")
PROMISES = section("docs/reference/pipelines.md", "What effects and sinks promise")


@each("file", sorted((EXAMPLES / "pipelines").glob("*.yaml")))
def test_a_scenario_is_printed_as_it_runs_or_named(file):
    assert f'```yaml title="{file.name}"\n{file.read_text()}```\n' in PAGE or f"`{file.name}`" in PAGE


def test_the_pipeline_for_lambda_does_what_its_example_says(tmp_path, aws):
    page = section("docs/how-to/pipelines.md", "On AWS Lambda")
    (text,) = re.findall(r'```yaml title="orders.yaml"\n(.*?)```', page, re.DOTALL)
    file = tmp_path / "orders.yaml"
    file.write_text(text)
    for command in ("vet", "test"):
        done = CliRunner().invoke(command_line(), [command, str(file)])
        assert done.exit_code == 0, done.output


def test_vet_finds_no_mistake_in_what_the_reference_prints(tmp_path, aws, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("orders.ndjson").touch()
    for block in re.findall(r"```yaml\n(.*?)```", PROMISES, re.DOTALL):
        tmp_path.joinpath("pipeline.yaml").write_text(block)
        assert examine(tmp_path / "pipeline.yaml")[1] == [], block


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


@each(
    ("was", "now"),
    [
        ("filter:", "filtr:"),
        ("lease: 90s", "lease: 90 weeks"),
        ("on_busy: 5s", "on_busy: never"),
    ],
)
def test_the_schema_takes_a_pipeline_and_refuses_what_is_wrong(was, now):
    check(VALID)
    with pytest.raises(jsonschema.ValidationError):
        check(VALID.replace(was, now))
