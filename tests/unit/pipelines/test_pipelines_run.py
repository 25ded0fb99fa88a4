"""A pipeline from a file runs each message once."""

import asyncio
import json
import sys
import uuid

import pytest

from onceward import Once
from onceward.pipelines import PipelineInvalid, load
from onceward.pipelines.pipeline import PipelineRun
from onceward.pipelines.sources import lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def written(folder, steps, *, lines=(), more="", effects="", ledger="sqlite:///{}/ledger.db"):
    """Write a pipeline, its input, and a module with a name of its own; return the file."""
    module = f"shop_{uuid.uuid4().hex}"
    folder.joinpath(f"{module}.py").write_text(f"made = []\n{effects}")
    folder.joinpath("orders.ndjson").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    file = folder / "orders.yaml"
    text = "name: orders\nledger: LEDGER\nsource:\n  ndjson: {files: [orders.ndjson]}\nguard: {key: message.id}\n"
    text += steps.replace("SHOP", module) + more
    file.write_text(text.replace("LEDGER", ledger.format(folder)))
    return file, lambda: sys.modules[module].made


def run(file):
    outcomes = []
    runs = PipelineRun(load(file), outcomes.append)
    asyncio.run(runs.run_async(until_empty=True))
    return outcomes


CHARGE = "def charge(order):\n    made.append(order['id'])\n    return {'paid': order['id']}\n"


def test_each_key_takes_effect_once_over_two_runs(folder):
    steps = "steps:\n  - call: {function: SHOP:charge}\n    into: payment\nsinks:\n  - stdout:\n"
    file, made = written(folder, steps, lines=[{"id": 1}, {"id": 2}, {"id": 1}], effects=CHARGE)

    first, second = run(file), run(file)

    assert sorted(made()) == [1, 2]
    assert sorted(one.status for one in first) in (["done", "done", "replayed"], ["done", "done", "done"])
    assert {one.status for one in second} == {"replayed"}
    assert {one.key: one.value for one in second}["orders:1"] == [{"id": 1, "payment": {"paid": 1}}]


def test_a_line_that_another_worker_keeps_is_told_as_busy_at_last(folder, monkeypatch):
    monkeypatch.setattr(lines, "WAIT_BEYOND", 0.0)
    file, _ = written(folder, "sinks:\n  - stdout:\n", lines=[{"id": 1}, {"id": 2}], more="concurrency: 1\n")
    file.write_text(file.read_text().replace("key: message.id", "key: message.id, lease: 1s"))
    with Once(f"sqlite:///{folder}/ledger.db", name="orders").claim(1) as claim:
        assert sorted(one.status for one in run(file)) == ["busy", "done"]
        claim.complete()
    assert [one.status for one in run(file)] == ["replayed", "replayed"]


def test_all_mistakes_are_told_with_their_places(folder):
    steps = "steps:\n  - map: {to: 'messag.id'}\n  - calls: {}\n  - filter: {where: '['}\n  - call: {function: 'nowhere:f'}\n"
    file, _ = written(folder, steps)
    with pytest.raises(PipelineInvalid, match=r"orders.yaml:8:5: 'calls' is not known here; is it 'call'"):
        load(file)
    file.write_text(file.read_text().replace("  - calls: {}\n", ""))
    with pytest.raises(PipelineInvalid) as found:
        load(file)
    assert [one.place.line for one in found.value.mistakes] == [7, 8, 9]


def test_a_guard_can_put_what_it_recorded_into_a_field(folder):
    steps = (
        "concurrency: 1\nsteps:\n  - guard:\n      key: message.shop\n      to: score\n      steps:\n"
        "        - call: {function: SHOP:charge}\n          into: paid\n        - map: {to: message.paid.paid}\n"
        "sinks:\n  - stdout:\n"
    )
    lines = [{"id": 1, "shop": "a"}, {"id": 2, "shop": "a"}]
    file, made = written(folder, steps, lines=lines, effects=CHARGE)

    outcomes = run(file)

    assert made() == [1]
    assert {one.key: one.value for one in outcomes} == {
        "orders:1": [{"id": 1, "shop": "a", "score": 1}],
        "orders:2": [{"id": 2, "shop": "a", "score": 1}],
    }


def test_messages_that_share_an_inner_key_wait_for_each_other(folder):
    steps = (
        "steps:\n  - guard:\n      key: message.shop\n      to: shop\n      steps:\n"
        "        - call: {function: SHOP:look_up}\n          into: found\n"
    )
    effects = (
        "import time\n\ndef look_up(order):\n    made.append(order['shop'])\n    time.sleep(0.5)\n    return 'found'\n"
    )
    file, made = written(folder, steps, lines=[{"id": number, "shop": "a"} for number in range(3)], effects=effects)

    assert [one.status for one in run(file)] == ["done"] * 3
    assert made() == ["a"]


def test_an_item_that_comes_in_another_place_of_another_batch_is_not_charged_again(folder):
    effects = CHARGE + "def mail(order):\n    made.append('mail')\n    assert made.count('mail') > 1\n"
    steps = (
        "concurrency: 1\nsteps:\n  - each:\n      items: message.orders\n      steps:\n        - guard:\n            key: message.id\n"
        "            steps:\n              - call: {function: SHOP:charge}\n              - call: {function: SHOP:mail}\n"
    )
    lines = [{"id": "x", "orders": [{"id": "none"}, {"id": "b"}]}, {"id": "y", "orders": [{"id": "b"}]}]
    effects = effects.replace(
        "    made.append('mail')\n", "    if order['id'] == 'none':\n        return\n    made.append('mail')\n"
    )
    file, made = written(folder, steps, lines=lines, effects=effects)

    outcomes = run(file)

    assert {one.key: one.status for one in outcomes} == {"orders:x": "failed", "orders:y": "done"}
    assert made() == ["none", "b", "mail", "mail"]


def test_a_killed_watchdog_is_no_error_of_a_step_and_another_is_started(folder, monkeypatch):
    command = "[sh, -c, 'echo run >> log; if [ ! -e killed ]; then touch killed; kill -9 $PPID; sleep 60; fi']"
    steps = f"concurrency: 1\nsteps:\n  - run: {{command: {command}}}\n    on_error: skip\n"
    file, _ = written(folder, steps, lines=[{"id": 1}, {"id": 2}])
    monkeypatch.chdir(folder)

    assert [one.status for one in run(file)] == ["failed", "done"]
    assert sorted(one.status for one in run(file)) == ["done", "replayed"]
    assert (folder / "log").read_text() == "run\n" * 3
