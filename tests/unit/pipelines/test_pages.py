"""The pages about pipelines print the files that run, the schema takes what the engine takes, and ``onceward test`` runs a file's examples."""

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from commands.command_line import Cli
from onceward.cli.app import command_line
from onceward.pipelines import reading
from onceward.pipelines.pipeline import examine
from places import DOCS, EXAMPLES
from printed.pages import section
from tables import each

sys.path.insert(0, str(DOCS))
from generated.pipeline_schema import schema, text

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
guard: {key: message.id, retention: forever, lease: 90s}
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
    assert LISTED.read_text() == reading.schema() == text(), "the model of pipelines has changed: run `make api`"


@each(("was", "now"), [("filter:", "filtr:"), ("lease: 90s", "lease: 90 weeks"), ("on_busy: 5s", "on_busy: never")])
def test_the_schema_takes_a_pipeline_and_refuses_what_is_wrong(was, now):
    check(VALID)
    with pytest.raises(jsonschema.ValidationError):
        check(VALID.replace(was, now))


FILE = """\
name: orders
source: {ndjson: {files: [orders.ndjson]}}
guard: {key: message.id}
steps:
  - filter: {where: message.total}
  - name: pay
    call: {function: json:dumps}
    into: paid
  - name: mail
    run: {command: [cat]}
    on_lapse: park
  - sql: {statement: DELETE FROM carts WHERE id = :id, parameters: {id: message.id}}
    name: cart
  - name: lookup
    retry: {until: message.ready, steps: [{name: ask, call: {function: json:dumps}, into: ready}]}
  - guard: {key: message.id, steps: [{name: stock, call: {function: json:dumps}}, {send: {to: {stdout: null}}}]}
sinks:
  - file: {path: out.ndjson}
examples:
  - name: an order
    input: {id: 1, total: 2}
    results: {pay: 7, ask: true}
    effects: {pay: 1, mail: 1, cart: 1, ask: 1, stock: 1}
    output:
      stdout: [{id: 1, total: 2, paid: 7, ready: true}]
      file: [{id: 1, total: 2, paid: 7, ready: true}]
  - name: nothing to pay
    input: {id: 2}
    effects: {}
    output: {}
  - name: declined
    input: {id: 3, total: 2}
    errors: {pay: card declined}
    fails: declined
    output: {}
"""


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("orders.ndjson", {"id": 1})
    tmp_path.joinpath("nowhere.py").write_text("")
    made.write("orders.yaml", FILE)
    return made


def results(cli):
    result = cli.run("test", "orders.yaml", "--json")
    return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_examples_that_hold_are_ok_after_each_kill(cli):
    status, found = results(cli)
    assert status == 0, found
    assert [one["example"] for one in found if one["ok"]] == ["an order", "nothing to pay", "declined"]
    assert found[0]["kills"] >= 10
    assert sorted(one.name for one in cli.folder.iterdir()) == ["nowhere.py", "orders.ndjson", "orders.yaml"]


@pytest.mark.slow
@pytest.mark.sampled(was=2, now=2, fault=2)
@pytest.mark.parametrize(
    ("was", "now", "fault"),
    [
        ("effects: {pay: 1, ", "effects: {pay: 2, ", "effects: expected"),
        ("results: {pay: 7,", "results: {pai: 7,", "output: expected"),
        ("    results: {pay: 7, ask: true}\n", "", "does not hold after 3 tries"),
    ],
)
def test_an_example_that_does_not_hold_says_why(cli, was, now, fault):
    path = cli.folder / "orders.yaml"
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, now))
    status, found = results(cli)
    assert status == 1
    assert fault in "".join(text for one in found for text in one["faults"])
