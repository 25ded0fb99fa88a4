"""Guards in a file: around everything, some steps, or a sink; their keys, retention and duplicates; and input that is held."""

import asyncio

import pytest

from onceward import Once
from onceward.consumers.callers import unless_set
from onceward.pipelines.pipeline import PipelineRun

PAY = "def pay(order):\n    made.append(order['id'])\n    return len(made)\n"
CALL = "call: {function: SHOP:pay}\n"
PRINT = "sinks: [{stdout: null}]\n"


@pytest.mark.parametrize(
    ("guard", "messages", "statuses"),
    [
        ("{}", [{"id": 1, "a": 2}, {"a": 2, "id": 1}, {"id": 2}], ["done", "replayed", "done"]),
        ("{key: message.id, fingerprint: message}", [{"id": 1, "n": 1}, {"id": 1, "n": 2}], ["done", "mismatch"]),
        ("{key: '[message.shop, message.id]'}", [{"id": 1}], ["malformed"]),
    ],
    ids=["default", "fingerprint", "no key"],
)
def test_a_guard_goes_by_its_key(pipelines, guard, messages, statuses):
    pipelines.functions(PAY)
    pipelines.write(f"steps: [{{{CALL.strip()}}}]\n", guard=f"guard: {guard}\n")
    assert [pipelines.handle(data, n).status for n, data in enumerate(messages)] == statuses


INNER = """\
steps:
  - guard:
      name: payment
      key: message.shop
      on_duplicate: drop
      steps:
        - call: {function: SHOP:pay}
          into: paid
  - call: {function: SHOP:later}
"""
LATER = "def later(order):\n    made.append('later')\n    assert made.count('later') != 1\n"


def test_a_message_goes_on_with_the_result_that_a_person_has_settled(pipelines):
    pipelines.functions("def pay(order): raise ValueError\n")
    steps = "steps: [{guard: {name: payment, key: message.id, attempts: 1, steps: [{call: {function: 'SHOP:pay'}}]}}]\n"
    pipelines.write(steps + PRINT)
    once = Once(pipelines.ledger)
    for number, result, told in [(1, {"paid": 7}, {"paid": 7}), (2, None, {"id": 2})]:
        assert not pipelines.handle({"id": number}).ok
        once.ledger.settle(f"orders.payment:{number}", result)
        assert pipelines.handle({"id": number}).value == [told]
    once.close()


def test_a_crash_behind_a_guard_loses_no_message(pipelines):
    """Substation's lock would find the key taken the second time, and drop the message."""
    pipelines.functions(PAY + LATER)
    pipelines.write(INNER + PRINT)
    assert pipelines.handle({"id": 1, "shop": "a"}).status == "failed"
    assert pipelines.handle({"id": 2, "shop": "a"}, 1).value is None
    assert pipelines.handle({"id": 1, "shop": "a"}, 2).value == [{"id": 1, "shop": "a", "paid": 1}]
    assert pipelines.made == [1, "later", "later"]


def test_a_sink_can_have_a_guard_of_its_own_which_knows_what_no_record_could_hold(pipelines):
    pipelines.write("sinks:\n  - file: {path: out.ndjson}\n    guard: {key: message.shop}\n")
    for number in (1, 2, 3):
        text = {} if number < 3 else {"text": "x" * 300_000}
        assert pipelines.handle({"id": number, "shop": "a", **text}, number).ok
    assert pipelines.folder.joinpath("out.ndjson").read_text() == '{"id":1,"shop":"a"}\n'


def test_a_message_that_the_record_of_a_guard_cannot_hold_fails_in_it_each_time(pipelines):
    pipelines.write("steps: [{guard: {name: payment, key: message.id, steps: [{map: {to: message}}]}}]\n")
    for _ in range(2):
        outcome = pipelines.handle({"id": 1, "text": "x" * 300_000})
        assert "the record of this guard cannot hold the message: it takes 3" in str(outcome.error)


def test_a_guard_leaves_a_binary_message_as_it_is_also_for_a_duplicate(pipelines):
    pipelines.functions("def pay(order):\n    made.append(order)\n    assert len(made) > 1\n")
    steps = "steps: [{guard: {key: meta.id, steps: [{map: {to: message}}]}}, {call: {function: SHOP:pay}}]\n"
    pipelines.write(steps, guard="guard: {key: meta.id}\n")
    assert [pipelines.handle(b"\xff").ok for _ in range(2)] == [False, True]
    assert pipelines.made == [b"\xff"] * 2


def test_without_a_guard_a_redelivery_is_known_by_its_own_id(pipelines):
    pipelines.functions(PAY)
    pipelines.write(f"steps: [{{{CALL.strip()}}}]\n", head="name: orders\nsource: {schedule: {every: 1d}}\n", guard="")
    assert [pipelines.handle({"id": 1}, n).status for n in (0, 0, 1)] == ["done", "replayed", "done"]


@pytest.mark.parametrize("end", ["release", "stop"])
async def test_input_is_held_while_a_key_is_held(pipelines, end):
    pipelines.lines({"id": 1})
    pipelines.write("steps: [{map: {to: message}}]\nhold: {key: 'ops:migration', every: 20ms}\n")
    once, outcomes = Once(pipelines.ledger), []
    claim = once.acquire("migration", name="ops", lease=300)

    running = PipelineRun(pipelines.load(), outcomes.append)
    task = asyncio.create_task(running.run_async())
    await asyncio.sleep(0.3)
    assert not outcomes
    await asyncio.to_thread(claim.release if end == "release" else running.stop)
    await task
    once.close()
    assert [one.status for one in outcomes] == (["done"] if end == "release" else [])


def test_a_hold_whose_key_cannot_be_asked_for_is_not_taken_for_free():
    async def ask():
        raise LookupError("the ledger")

    with pytest.raises(LookupError):
        asyncio.run(unless_set(asyncio.Event(), ask()))


def test_what_a_guard_has_printed_is_printed_by_the_attempt_that_comes_to_its_end(pipelines):
    pipelines.functions("def pay(order):\n    made.append(order['id'])\n    assert len(made) > 1\n")
    inside = "{guard: {key: message.id, steps: [{send: {to: {stdout: null}}}]}}"
    pipelines.write(f"steps: [{inside}, {{call: {{function: 'SHOP:pay'}}}}]\n").lines({"id": 1})
    assert [[one.value for one in pipelines.run()] for _ in "12"] == [[None], [[{"id": 1}]]]
