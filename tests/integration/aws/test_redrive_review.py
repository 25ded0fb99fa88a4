"""What a review of the redrive found."""

import json

import pytest
from test_redrive import KEYED, Scene, outcomes

from command_line import Cli
from lambda_events import sns_envelope
from onceward import Once
from onceward.aws import Queue, on_sqs
from onceward.aws.dead_letters import redrive as module
from onceward.aws.dead_letters.redrive import Redrive
from onceward.core.record import COMPLETED
from onceward.errors import OncewardError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "WAIT", 0)  # the server is one, and answers at once whether it has any


@pytest.fixture
def scene(ministack, aws, tmp_path):
    made = Scene(ministack, f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.once.close()


@pytest.fixture
def handle(scene):
    """A consumer that compares its input, and has handled order 1 with the total 10."""

    @on_sqs(scene.once, key="order.id", fingerprint=True)
    def handle(order):
        scene.effects.append((order["id"], order["total"]))

    def deliver(order):
        record = {"messageId": "m", "body": json.dumps(order), "eventSource": "aws:sqs"}
        return handle({"Records": [record]})["batchItemFailures"]

    assert deliver({"id": 1, "total": 10}) == []
    return deliver


# --- a key that was completed with another input --------------------------------------------------------------------


@pytest.mark.usefixtures("handle")
@pytest.mark.parametrize("completed", ["drop", "rerun"])
@pytest.mark.parametrize(
    ("fingerprint", "why"), [(None, "say what it compares by --fingerprint"), ("body", "another input")]
)
def test_a_message_whose_effect_was_never_made_is_not_dropped_for_the_effect_of_another(
    scene, completed, fingerprint, why
):
    other = scene.dead({"id": 1, "total": 99})
    (fate,) = scene.run(key="body.id", fingerprint=fingerprint, completed=completed)
    assert (fate.outcome, list(scene.there())) == ("refused", [other])
    assert why in fate.reason
    assert scene.record(1).status == COMPLETED


@pytest.mark.usefixtures("handle")
def test_nor_is_it_when_an_earlier_run_had_begun_to_move_it(scene):
    other = scene.dead({"id": 1, "total": 99})
    Once(scene.once.store).acquire(other, name=module.NAME).release("killed")
    for fingerprint in (None, "@"):
        (fate,) = scene.run(key="body.id", fingerprint=fingerprint)
        assert (fate.outcome, list(scene.there())) == ("refused", [other])


@pytest.mark.parametrize(("completed", "outcome"), [("drop", "dropped"), ("rerun", "moved")])
def test_a_message_whose_own_effect_was_made_is_dropped_or_runs_again_as_told(scene, handle, completed, outcome):
    scene.dead({"total": 10, "id": 1})
    assert outcomes(scene.run(key="body.id", fingerprint="body", completed=completed)) == [outcome]
    assert scene.aws.left(scene.dlq) == 0
    assert handle({"id": 1, "total": 10}) == []
    assert scene.effects == [(1, 10)] * (2 if completed == "rerun" else 1)


def test_the_command_takes_what_the_consumer_compares(scene, handle, cli):
    scene.dead({"id": 1, "total": 99})
    command = ("redrive", scene.dlq, "--to", scene.target, "--store", scene.url, "--name", "shop", "--key", "body.id")
    told = cli.run(*command, "--fingerprint", "body", "--completed", "drop", "--yes")
    assert (told.returncode, scene.aws.left(scene.dlq)) == (1, 1)
    assert b"its key was used with another input" in told.stdout


@pytest.fixture
def cli(tmp_path, aws):
    return Cli(tmp_path)


# --- queues that do not fit -----------------------------------------------------------------------------------------


def test_a_run_from_python_is_refused_for_queues_that_do_not_fit_before_anything_is_received(scene):
    scene.dead()
    run = Redrive(Once(scene.once.store), Queue(scene.dlq), Queue(scene.dlq), name="shop")
    with pytest.raises(OncewardError, match="both the dead-letter queue"):
        list(run.run())
    (message,) = scene.there().values()
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


# --- messages at the size limit -------------------------------------------------------------------------------------


@pytest.fixture
def narrow(scene):
    """A target whose messages may have 1024 bytes."""
    scene.aws.ask("AmazonSQS.SetQueueAttributes", QueueUrl=scene.target, Attributes={"MaximumMessageSize": "1024"})
    return scene


def test_a_message_that_has_no_room_for_its_key_stays_as_it_is_and_so_does_its_key(narrow):
    first = narrow.dead("x" * 1000)
    narrow.park(first)
    (fate,) = narrow.run()
    assert (fate.outcome, list(narrow.there())) == ("refused", [first])
    assert "its target takes 1024" in fate.reason
    assert narrow.record(first).status == "PARKED"


def test_a_message_whose_key_is_in_its_body_is_moved_without_ours_when_there_is_no_room(narrow):
    body = json.dumps({"id": 7, "text": "x" * 980})
    narrow.dead(body)
    assert outcomes(narrow.run(key="body.id")) == ["moved"]
    (copy,) = narrow.there(narrow.target).values()
    assert copy["Body"] == body
    assert "MessageAttributes" not in copy


def test_a_message_whose_key_is_in_its_envelope_needs_no_room(narrow):
    narrow.dead(sns_envelope("x" * 600))
    assert outcomes(narrow.run(unwrap="sns")) == ["moved"]


def test_a_message_that_has_a_key_already_needs_no_room(narrow):
    narrow.dead("x" * 980, KEYED)
    assert outcomes(narrow.run()) == ["moved"]


# --- a queue that hands over one message twice ----------------------------------------------------------------------


def test_a_message_that_comes_twice_in_one_answer_is_moved_once(scene, monkeypatch):
    first = scene.dead()
    run = scene.redrive()
    receive = run._source.receive
    monkeypatch.setattr(run._source, "receive", lambda *arguments: 2 * receive(*arguments))
    assert [(fate.outcome, fate.message.id) for fate in run.run()] == [("moved", first)]
    assert (scene.aws.left(scene.dlq), scene.aws.left(scene.target)) == (0, 1)
