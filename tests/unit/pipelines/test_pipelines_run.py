"""A pipeline from a file runs each message once."""

import asyncio

from onceward import Once
from onceward.pipelines import load
from onceward.pipelines.pipeline import PipelineRun
from onceward.pipelines.sources import lines

CHARGE = "def charge(order):\n    made.append(order['id'])\n    return {'paid': order['id']}\n"
PRINT = "sinks: [{stdout: null}]\n"


def outcomes_of(pipelines):
    return {one.key: one.value for one in pipelines.run()}


def test_each_key_takes_effect_once_over_two_runs(pipelines):
    pipelines.functions(CHARGE)
    pipelines.lines({"id": 1}, {"id": 2}, {"id": 1})
    pipelines.write("steps: [{call: {function: 'SHOP:charge'}, into: payment}]\n" + PRINT)

    first, second = pipelines.run(), pipelines.run()

    assert sorted(pipelines.made) == [1, 2]
    assert sorted(one.status for one in first) in (["done", "done", "replayed"], ["done", "done", "done"])
    assert {one.status for one in second} == {"replayed"}
    assert {one.key: one.value for one in second}["orders:1"] == [{"id": 1, "payment": {"paid": 1}}]


def test_sqlite_files_are_beside_the_file_of_the_pipeline_wherever_it_is_started(pipelines, monkeypatch):
    store = "{store: {at: 'sqlite:///values.db', space: s, key: message.id, value: message.id}}"
    sql = "{name: N, sql: {database: 'sqlite:///N.db', statement: 'CREATE TABLE t (y)'}}"
    own, other = sql.replace("N", "onceward"), sql.replace("N", "other")
    pipelines.lines({"id": 1})
    pipelines.write(f"steps: [{store}, {own}, {other}]\n")
    outcomes = []
    for name in ("a", "b"):
        folder = pipelines.folder / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        asyncio.run(PipelineRun(load(pipelines.file), outcomes.append).run_async())
    assert [one.status for one in outcomes] == ["done", "replayed"]
    found = sorted(str(file.relative_to(pipelines.folder)) for file in pipelines.folder.rglob("*.db"))
    assert found == ["onceward.db", "other.db", "values.db"]
    load(pipelines.file, ledger="sqlite:///here.db").once.run("1", int)
    assert pipelines.folder.joinpath("b", "here.db").exists()


def test_a_line_that_another_worker_keeps_is_told_as_busy_at_last(pipelines, monkeypatch):
    monkeypatch.setattr(lines, "WAIT_BEYOND", 0.0)
    pipelines.lines({"id": 1}, {"id": 2})
    pipelines.write(PRINT + "concurrency: 1\n", guard="guard: {key: message.id, lease: 1s}\n")
    with Once(pipelines.ledger, name="orders").claim(1) as claim:
        assert sorted(one.status for one in pipelines.run()) == ["busy", "done"]
        claim.complete()
    assert [one.status for one in pipelines.run()] == ["replayed", "replayed"]


def test_a_guard_can_put_what_it_recorded_into_a_field(pipelines):
    pipelines.functions(CHARGE)
    pipelines.lines({"id": 1, "shop": "a"}, {"id": 2, "shop": "a"})
    steps = "[{call: {function: 'SHOP:charge'}, into: paid}, {map: {to: message.paid.paid}}]"
    guard = f"steps: [{{guard: {{key: message.shop, to: score, steps: {steps}}}}}]\n"
    pipelines.write(f"concurrency: 1\n{guard}{PRINT}")

    assert outcomes_of(pipelines) == {
        "orders:1": [{"id": 1, "shop": "a", "score": 1}],
        "orders:2": [{"id": 2, "shop": "a", "score": 1}],
    }
    assert pipelines.made == [1]


def test_messages_that_share_an_inner_key_wait_for_each_other(pipelines):
    pipelines.functions("import time\ndef look_up(order):\n    made.append(order['shop'])\n    time.sleep(0.5)\n")
    pipelines.lines(*({"id": number, "shop": "a"} for number in range(3)))
    pipelines.write("steps: [{guard: {key: message.shop, to: shop, steps: [{call: {function: 'SHOP:look_up'}}]}}]\n")

    assert [one.status for one in pipelines.run()] == ["done"] * 3
    assert pipelines.made == ["a"]


def test_an_item_that_comes_in_another_place_of_another_batch_is_not_charged_again(pipelines):
    mail = """
def mail(order):
    if order['id'] != 'none':
        made.append('mail')
        assert made.count('mail') > 1
"""
    pipelines.functions(CHARGE + mail)
    pipelines.lines({"id": "x", "orders": [{"id": "none"}, {"id": "b"}]}, {"id": "y", "orders": [{"id": "b"}]})
    guard = "{key: message.id, steps: [{call: {function: 'SHOP:charge'}}, {call: {function: 'SHOP:mail'}}]}"
    pipelines.write(f"concurrency: 1\nsteps: [{{each: {{items: message.orders, steps: [{{guard: {guard}}}]}}}}]\n")

    assert {one.key: one.status for one in pipelines.run()} == {"orders:x": "failed", "orders:y": "done"}
    assert pipelines.made == ["none", "b", "mail", "mail"]


def test_a_killed_watchdog_is_no_error_of_a_step_and_another_is_started(pipelines, monkeypatch):
    command = "[sh, -c, 'echo run >> log; if [ ! -e killed ]; then touch killed; kill -9 $PPID; sleep 60; fi']"
    pipelines.lines({"id": 1}, {"id": 2})
    pipelines.write(f"concurrency: 1\nsteps: [{{run: {{command: {command}}}, on_error: skip}}]\n")
    monkeypatch.chdir(pipelines.folder)

    assert [one.status for one in pipelines.run()] == ["failed", "done"]
    assert sorted(one.status for one in pipelines.run()) == ["done", "replayed"]
    assert (pipelines.folder / "log").read_text() == "run\n" * 3
