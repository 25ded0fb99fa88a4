"""A pipeline from a file runs each message once, and what each step does to it; also on Lambda, for the events of any trigger."""

import asyncio
import base64
import json
from decimal import Decimal

import pytest

from onceward import Once
from onceward.errors import OncewardError
from onceward.pipelines import lambda_handler, load, on_lambda
from onceward.pipelines.pipeline import PipelineRun
from onceward.pipelines.sources import lines
from onceward.pipelines.steps.sql import _typed as attribute_of
from queues import lambda_events as events
from tables import each


@each(
    ("value", "typed"),
    [(Decimal("19.99"), {"N": "19.99"}), (2, {"N": "2"}), ("2", {"S": "2"}), (b"2", {"B": "Mg=="})],
)
def test_put_keeps_the_type_of_a_value(value, typed):
    assert attribute_of(value) == typed


def test_put_refuses_what_cannot_be_an_attribute():
    with pytest.raises(ValueError, match="a set cannot be an attribute"):
        attribute_of({1})


PRINT = "sinks: [{stdout: null}]\n"


def result(pipelines, steps, data):
    outcome = pipelines.write(f"{steps}\n{PRINT}").handle(data)
    assert outcome.ok, outcome.error
    return outcome.value


@pytest.mark.parametrize(
    ("settings", "data", "left"),
    [
        ("set: {a.b: message.c, c: '`5`'}", {"c": 1}, {"a": {"b": 1}, "c": 5}),
        ("to: message.order, set: {id: message.id}", {"id": 1, "order": {"n": 2}}, {"id": 1, "n": 2}),
        ("remove: [card.number, none.here]", {"card": {"number": 1, "name": 2}}, {"card": {"name": 2}}),
        ("set: {source: meta.source, raw: meta.raw.number}", {}, {"source": "test", "raw": 0}),
    ],
)
def test_a_map_changes_the_message(pipelines, settings, data, left):
    assert result(pipelines, f"steps: [{{map: {{{settings}}}}}]", {"id": 0, **data}) in ([left], [{"id": 0, **left}])


@pytest.mark.parametrize(("value", "passes"), [(0, True), ("", False), ([], False), (None, False), ("x", True)])
def test_a_filter_goes_by_what_is_true_in_jmespath(pipelines, value, passes):
    left = result(pipelines, "steps: [{filter: {where: message.ok}}]", {"id": 1, "ok": value})
    assert (left is not None) == passes


def test_a_switch_takes_the_first_case_that_holds(pipelines):
    steps = """\
steps:
  - switch:
      cases:
        - {when: message.n == `1`, steps: [{map: {set: {case: "'one'"}}}]}
        - {when: message.n, steps: [{map: {set: {case: "'any'"}}}]}
      otherwise: [{filter: {where: message.never}}]
"""
    assert result(pipelines, steps, {"id": 1, "n": 1})[0]["case"] == "one"
    assert result(pipelines, steps, {"id": 2, "n": 2})[0]["case"] == "any"
    assert result(pipelines, steps, {"id": 3}) is None


def test_the_items_of_a_list_have_effects_of_their_own(pipelines):
    pipelines.functions("def pay(item):\n    made.append(item)\n    assert made.count(3) != 1\n    return item * 10\n")
    steps = """\
steps:
  - each:
      items: message.items
      steps:
        - map: {to: "{n: message, of: meta.outer.id, at: meta.index}"}
        - call: {function: SHOP:pay, arguments: [message.n]}
          into: paid
      to: items
"""
    pipelines.write(steps + PRINT)
    order = {"id": 7, "items": [1, 2, 3]}
    assert pipelines.handle(order).status == "failed"
    outcome = pipelines.handle(order)
    assert outcome.value[0]["items"][1] == {"n": 2, "of": 7, "at": 1, "paid": 20}
    assert pipelines.made[:4] == [1, 2, 3, 3]


def test_a_retry_tries_until_its_condition_holds(pipelines):
    pipelines.functions("def ask(order):\n    made.append(1)\n    return {'ready': len(made) == 3}\n")
    steps = """\
steps:
  - retry:
      until: message.answer.ready
      tries: 5
      pause: 1ms
      steps: [{call: {function: SHOP:ask}, into: answer}]
"""
    assert result(pipelines, steps, {"id": 1}) == [{"id": 1, "answer": {"ready": True}}]
    assert pipelines.handle({"id": 1}).status == "replayed"
    assert len(pipelines.made) == 3


@pytest.mark.parametrize(("errors", "calls"), [("", 3), ("errors: ['time.*out'],", 3), ("errors: [refused],", 1)])
def test_a_retry_is_for_errors_by_their_pattern(pipelines, errors, calls):
    pipelines.functions("def ask(order):\n    made.append(1)\n    raise OSError('timed out')\n")
    steps = f"steps: [{{retry: {{tries: 3, pause: 1ms, {errors} steps: [{{call: {{function: SHOP:ask}}}}]}}}}]"
    assert pipelines.write(steps).handle({"id": 1}).status == "failed"
    assert len(pipelines.made) == calls


def test_a_result_is_the_same_now_and_from_the_record(pipelines):
    later = "def later(order):\n    made.append(order['paid'])\n    assert len(made) > 1\n"
    pipelines.functions(f"import datetime as dt\ndef pay(_):\n    return (1, dt.date(2026, 1, 2), {{3: 4}})\n{later}")
    pipelines.write("steps: [{call: {function: SHOP:pay}, into: paid}, {call: {function: SHOP:later}}]\n")
    assert [pipelines.handle({"id": 1}).status for _ in range(2)] == ["failed", "done"]
    assert pipelines.made == [[1, "2026-01-02", {"3": 4}]] * 2


def test_a_value_fills_a_whole_argument_and_no_shell_sees_it(pipelines):
    steps = (
        "steps: [{run: {command: [printf, '%s|', --, {value: message.id}, {value: message.n}, '$(id)']}, into: got}]"
    )
    (left,) = result(pipelines, steps, {"id": "; id `id` $(id)", "n": {"a": [1]}})
    assert left["got"] == '--|; id `id` $(id)|{"a":[1]}|$(id)|'


def test_a_value_that_could_be_an_option_is_refused(pipelines):
    pipelines.write("steps: [{run: {command: [echo, {value: message.id}]}}]")
    for value in ("--help", "-inf", "-1_0"):
        outcome = pipelines.handle({"id": value})
        assert outcome.status == "failed"
        assert "could take it for an option" in str(outcome.error)
    for value in (-5, -1.5e-30):
        assert pipelines.handle({"id": value}).ok


def test_code_for_a_shell_is_never_filled_in(pipelines):
    pipelines.write("steps: [{run: {command: [sh, -c, {value: message.id}]}}]")
    assert [(line, "would run as code" in text) for line, _, text in pipelines.mistakes()] == [(4, True)]


def test_a_command_knows_its_derived_key(pipelines):
    steps = "steps: [{run: {command: [sh, -c, 'echo $ONCEWARD_DERIVED_KEY']}, into: key, name: pay}]"
    (left,) = result(pipelines, steps, {"id": 1})
    key = left["key"].strip()
    with Once("memory:").claim("1", name="orders") as claim:
        assert key != claim.key()


def test_a_command_that_fails_tells_its_status_and_errors(pipelines):
    pipelines.write("steps: [{run: {command: [sh, -c, 'cat >&2; exit 3']}}]")
    assert str(pipelines.handle({"id": 1}).error) == 'exit status 3: {"id":1}'


def test_a_function_may_be_async_and_take_names(pipelines):
    pipelines.functions("async def pay(n, *, to):\n    made.append((n, to))\n")
    steps = "steps: [{call: {function: SHOP:pay, arguments: [message.n], named: {to: message.to}}}]\n"
    assert pipelines.write(steps).handle({"id": 1, "n": 5, "to": "x"}).ok
    assert pipelines.made == [(5, "x")]


CHARGE = "def charge(order):\n    made.append(order['id'])\n    return {'paid': order['id']}\n"


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
    sql = "{name: N, sql: {database: 'sqlite:///N.db', statement: 'CREATE TABLE t (y)'}}"
    own, other = sql.replace("N", "onceward"), sql.replace("N", "other")
    pipelines.lines({"id": 1})
    pipelines.write(f"steps: [{own}, {other}]\n")
    outcomes = []
    for name in ("a", "b"):
        folder = pipelines.folder / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        asyncio.run(PipelineRun(load(pipelines.file), outcomes.append).run_async())
    assert [one.status for one in outcomes] == ["done", "replayed"]
    found = sorted(str(file.relative_to(pipelines.folder)) for file in pipelines.folder.rglob("*.db"))
    assert found == ["onceward.db", "other.db"]
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

    found = {one.key: one.value for one in pipelines.run()}
    assert found == {f"orders:{number}": [{"id": number, "shop": "a", "score": 1}] for number in (1, 2)}
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


@pytest.fixture
def deployed(pipelines, monkeypatch):
    """Give a function that deploys a pipeline."""
    on_lambda._pipeline.cache_clear()
    on_lambda._handler.cache_clear()

    def deploy(*, steps="", effect="", sinks="", source="lambda: {direct: true}"):
        pipelines.functions(f"def take(message):\n    made.append(message)\n    {effect}\n")
        text = f"steps:\n{steps}  - call: {{function: 'SHOP:take'}}\n{sinks}"
        head = f"name: orders\nledger: {pipelines.ledger}\nsource: {{{source}}}\n"
        pipelines.write(text, head=head, guard="")
        monkeypatch.setenv("LAMBDA_TASK_ROOT", str(pipelines.folder))
        monkeypatch.setenv("ONCEWARD_PIPELINE", pipelines.file.name)
        return pipelines

    return deploy


def call(event):
    return lambda_handler(json.loads(json.dumps(event)), events.Context())


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        (events.sqs({"id": 1}), {"batchItemFailures": []}),
        (events.fifo(("g", {"id": 1})), {"batchItemFailures": []}),
        (events.kinesis({"id": 1}), {"batchItemFailures": []}),
        (events.kafka({0: [{"id": 1}]}), {"batchItemFailures": []}),
        (events.rabbitmq({"id": 1}), None),
        (events.activemq({"id": 1}), None),
        (events.sns({"id": 1}), None),
        (events.eventbridge({"id": 1}), None),
        ({"id": 1}, None),
    ],
    ids=lambda value: on_lambda.kind_of(value) if value and "batchItemFailures" not in value else "",
)
def test_an_event_of_any_trigger_takes_effect_once(deployed, event, answer):
    pipelines = deployed()
    assert call(event) == answer
    assert call(event) == answer
    assert pipelines.made == [{"id": 1}]


def test_a_record_that_fails_is_reported_alone(deployed):
    deployed(effect="assert message['id'] != 2")
    event = events.sqs({"id": 1}, {"id": 2}, {"id": 3})
    failed = event["Records"][1]["messageId"]
    assert call(event) == {"batchItemFailures": [{"itemIdentifier": failed}]}


def test_firehose_gets_what_stdout_gets_and_drops_the_rest(deployed):
    deployed(steps="  - filter: {where: message.keep}\n", sinks="sinks: [{stdout: }]\n")
    answer = call(events.firehose({"id": 1, "keep": True}, {"id": 2, "keep": False}))
    told = [(one["result"], json.loads(base64.b64decode(one["data"]))) for one in answer["records"]]
    assert told == [("Ok", {"id": 1, "keep": True}), ("Dropped", {"id": 2, "keep": False})]


@pytest.mark.parametrize("source", ["lambda: {}", "sqs: {queue: orders}"])
def test_an_event_of_no_known_trigger_is_refused_unless_it_is_asked_for(deployed, aws, source):
    deployed(source=source, effect="raise AssertionError")
    with pytest.raises(OncewardError, match="the event is of no trigger that pipeline orders"):
        call({"requestContext": {}, "body": "secret"})
