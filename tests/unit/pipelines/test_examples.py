"""``onceward test``: the examples of a file, run once, as a duplicate, and with a kill at each point."""

import json

import pytest

from commands.command_line import Cli

FILE = """\
name: orders
source: {ndjson: {files: [orders.ndjson]}}
guard: {key: message.id}
steps:
  - filter: {where: message.total}
  - name: pay
    call: {function: nowhere.to.be.called:pay}
    into: paid
  - name: mail
    run: {command: [cat]}
    on_lapse: park
  - name: lookup
    retry: {until: message.ready, steps: [{name: ask, call: {function: json:dumps}, into: ready}]}
  - guard: {key: message.id, steps: [{name: stock, call: {function: json:dumps}}, {send: {to: {stdout: null}}}]}
sinks:
  - file: {path: out.ndjson}
examples:
"""
EXAMPLE = """\
  - name: an order
    input: {id: 1, total: 2}
    results: {pay: 7, ask: true}
    effects: {pay: 1, mail: 1, ask: 1, stock: 1}
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
    made.write("orders.yaml", FILE.replace("nowhere.to.be.called:pay", "json:dumps") + EXAMPLE)
    return made


def results(cli):
    result = cli.run("test", "orders.yaml", "--json")
    return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_examples_that_hold_are_ok_after_each_kill(cli):
    status, found = results(cli)
    assert status == 0, found
    assert [(one["example"], one["ok"]) for one in found] == [
        ("an order", True),
        ("nothing to pay", True),
        ("declined", True),
    ]
    assert found[0]["kills"] >= 10
    assert sorted(one.name for one in cli.folder.iterdir()) == ["nowhere.py", "orders.ndjson", "orders.yaml"]


@pytest.mark.slow
@pytest.mark.sampled(was=2, now=2, fault=2)
@pytest.mark.parametrize(
    ("was", "now", "fault"),
    [
        ("effects: {pay: 1, ", "effects: {pay: 2, ", "effects: expected"),
        ("results: {pay: 7,", "results: {pai: 7,", "no effect or sink 'pai'"),
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
