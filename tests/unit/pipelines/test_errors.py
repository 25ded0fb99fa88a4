"""What errors and crashes mean: on_error, on_lapse, and how often an effect is made then."""

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.outbox import drain
from onceward.stores.memory import MemoryStore
from onceward.testing import ManualClock
from queues.boxes import Box
from tables import each

FAILS = "def pay(order):\n    made.append(order['id'])\n    raise OSError('card declined')\n"
STEP = "steps:\n  - name: pay\n    call: {function: SHOP:pay}\n    into: paid\n"
PRINT = "sinks: [{stdout: null}]\n"


@pytest.mark.parametrize("on_error", ["fail", "continue"])
def test_a_message_cannot_make_a_step_look_failed(pipelines, on_error):
    mark = "$onceward-failed"
    pipelines.lines({"id": 1, "card": "4111", mark: 1}, {mark: 1, "id": 2})
    pipelines.write(f"steps: [{{retry: {{steps: [{{map: {{remove: [card]}}}}]}}, on_error: {on_error}}}]\n{PRINT}")
    assert [one.value for one in pipelines.run()] == [[{"id": 1, mark: 1}], [{mark: 1, "id": 2}]]


def status(pipelines, key="orders:1"):
    once = Once(pipelines.ledger)
    with_record = drive(once.store.load(key), once.store).record
    once.close()
    return with_record


def test_a_message_can_go_on_without_a_step_and_never_makes_it_again(pipelines):
    pipelines.functions(FAILS + "def later(order):\n    made.append('later')\n    assert made.count('later') > 1\n")
    pipelines.write(STEP + "    on_error: continue\n  - call: {function: SHOP:later}\n" + PRINT)
    assert pipelines.handle({"id": 1}).status == "failed"
    assert pipelines.handle({"id": 1}).value == [{"id": 1}]
    assert pipelines.made == [1, "later", "later"]


def test_a_generator_is_no_step_that_was_made(pipelines):
    pipelines.functions("def each(order):\n    yield 1\ndef pay(order): return each(order)\n")
    outcome = pipelines.write(STEP).handle({"id": 1})
    assert "Its body has not run" in str(outcome.error)
    pipelines.write(STEP.replace("pay}", "each}"))
    assert "each is a generator" in pipelines.mistakes()[0][2]


@pytest.mark.parametrize("error", ["concurrent.futures.CancelledError", "StopIteration"])
def test_a_function_fails_with_any_error_of_its_own(pipelines, error):
    pipelines.functions(f"import concurrent.futures\ndef pay(order):\n    raise {error}\n")
    assert pipelines.write(STEP).handle({"id": 1}).status == "failed"
    assert status(pipelines).status == "RELEASED"


@pytest.mark.parametrize(
    ("on_error", "outcomes", "status_after", "runs"),
    [
        ("fail", ["failed", "failed"], "RELEASED", 2),
        ("skip", ["done", "replayed"], "COMPLETED", 1),
        ("park", ["parked", "parked"], "PARKED", 1),
    ],
)
def test_an_error_of_a_step_ends_the_message_as_the_file_says(pipelines, on_error, outcomes, status_after, runs):
    pipelines.functions(FAILS)
    pipelines.write(STEP + f"    on_error: {on_error}\n{PRINT}")
    assert [pipelines.handle({"id": 1}).status for _ in range(2)] == outcomes
    assert status(pipelines).status == status_after
    assert on_error != "park" or status(pipelines).error == "pay: OSError: card declined"
    assert pipelines.made == [1] * runs


@each(("on_error", "printed"), [("skip", None), ("continue", [{"id": "continue"}])])
def test_an_error_of_a_sink_ends_the_message_as_the_file_says(pipelines, on_error, printed):
    sink = f"{{file: {{path: f}}, guard: {{key: message.no}}, on_error: {on_error}}}"
    outcome = pipelines.write(f"sinks: [{sink}, {{stdout: null}}]\n").handle({"id": on_error})
    assert (outcome.status, outcome.value) == ("done", printed)


def test_a_dead_letter_leaves_with_the_completion(pipelines):
    box = Box()

    pipelines.functions(FAILS)
    pipelines.write(f"dead_letters: {box.address}\n{STEP}    on_error: dead_letter\n{PRINT}")
    assert [pipelines.handle({"id": 1}).status for _ in range(2)] == ["done", "replayed"]
    once = Once(pipelines.ledger)
    drain(60)
    once.close()
    (letter,) = box.target.sent
    assert letter.body == '{"id":1}'
    assert letter.headers["onceward-reason"] == "pay: OSError: card declined"


def test_errors_about_the_claim_are_never_forgiven(pipelines):
    pipelines.functions("from onceward.errors import Busy\ndef pay(order):\n    raise Busy('k', 1.0)\n")
    pipelines.write(STEP + "    on_error: continue\n")
    assert pipelines.handle({"id": 1}).status == "failed"


DIES = """
import asyncio
from onceward import current
class Killed(BaseException):
    pass
def pay(order):
    made.append(current().key("pay"))
    if len(made) == 1:
        raise Killed
    return 'paid'
def look(order):
    return {'found': bool(made) and order['id'] == 1}
"""


def after_a_kill(pipelines, text):
    """Handle a message whose worker dies inside the step; return what the next delivery comes to."""
    pipelines.functions(DIES)
    pipelines.write(text)
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock)
    with pytest.raises(BaseException, match=r"^$") as killed:
        pipelines.handle({"id": 1}, ledger=once)
    assert type(killed.value).__name__ == "Killed"
    clock.advance(120)
    return pipelines.handle({"id": 1}, ledger=once)


@pytest.mark.parametrize("on_lapse", ["retry", "park"])
def test_a_step_that_died_is_made_again_with_the_same_key_or_parks_it(pipelines, on_lapse):
    outcome = after_a_kill(pipelines, STEP + f"    on_lapse: {on_lapse}\n" + PRINT)
    if on_lapse == "park":
        assert "which may have been made" in str(outcome.error)
    else:
        assert outcome.value == [{"id": 1, "paid": "paid"}]
    assert len(pipelines.made) == (1 if on_lapse == "park" else 2)
    assert len(set(pipelines.made)) == 1


@pytest.mark.parametrize(("made", "count", "paid"), [("found", 1, "asked"), ("lost", 2, "paid")])
def test_a_step_that_died_can_be_found_out_about(pipelines, made, count, paid):
    find_out = (
        "    on_lapse:\n      steps: [{call: {function: SHOP:look}, into: there}]\n"
        f"      made: message.there.{made}\n      result: \"'asked'\"\n"
    )
    sql = f"  - sql: {{database: 'sqlite:///other.db', statement: SELECT 1}}\n{find_out.replace('call:', 'name: l, call:')}"
    outcome = after_a_kill(pipelines, STEP + find_out + sql + PRINT)
    assert outcome.value == [{"id": 1, "paid": paid}]
    assert len(pipelines.made) == count
