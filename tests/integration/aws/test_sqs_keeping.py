"""Messages that no dead-letter queue takes: kept in the ledger, never dropped, and sent again when their key is unparked."""

import json
import os
from operator import itemgetter

import pytest

from observing import note_outcomes
from onceward import Once, Parked
from onceward.aws import SqsWorker
from onceward.aws.dead_letters import redrive
from onceward.aws.dead_letters.letters import Refusal, unpark_to
from onceward.aws.dead_letters.redrive import Redrive
from onceward.aws.sqs.message import Attribute, kept_text, read_kept
from onceward.aws.sqs.queue import Queue
from onceward.consumers.broker import ATTEMPTS
from onceward.consumers.keeping import Place
from onceward.core.drivers import drive
from onceward.core.record import PARKED, RELEASED
from onceward.errors import OncewardError
from onceward.stores.contract import KeepsMessage
from queues.kept import ARN, ATTRIBUTES, MESSAGE, TEXT, keeping, kept, parked, record_of
from tables import each
from waiting import until, working


@pytest.fixture
def once():
    return Once("memory:", name="shop")


def drain(once, queue, handler, **options):
    """Work until the queue has nothing more to give; return what became of the messages, in order."""
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    options = {"key": itemgetter("id"), "wait": 0, "backoff": (0, 0), **options}
    SqsWorker(once, queue, handler, **options).run(until_empty=True)
    return told


def work(once, queue, handler, condition, **options):
    """Work until the condition holds; return what became of the messages, in order."""
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    options = {"key": itemgetter("id"), "wait": 1, "backoff": (0, 0), **options}
    with working(SqsWorker(once, queue, handler, **options)):
        until(condition)
    return told


def fails(order):
    raise OSError("poison")


def test_a_message_is_kept_as_readable_json_and_reads_back_unchanged():
    told = json.loads(TEXT)["message"]
    assert (told["id"], told["queue"], told["group"], told["body"]) == ("m-1", ARN, None, 'not "JSON" é\n')
    assert told["attributes"]["trace"] == {"type": "String", "value": "t-1"}
    assert told["attributes"]["raw"] == {"type": "Binary", "base64": "AP8="}
    queue, message = read_kept(TEXT)
    assert (queue, message.body, message.user_attributes, message.group) == (ARN, MESSAGE.body, ATTRIBUTES, None)
    grouped = MESSAGE._replace(attributes={"MessageGroupId": "a", "SenderId": "x"})
    assert read_kept(kept_text(grouped, ARN)).message.group == "a"


@each("text", ["", "[]", "{}", '{"message": 1}', '{"message": {"id": "a"}}', TEXT[:-3]])
def test_a_text_that_is_no_message_is_refused(text):
    with pytest.raises(OncewardError, match="not a message of a queue"):
        read_kept(text)


def test_a_poison_message_is_kept_sent_again_after_a_fix_and_handled_once(made, ministack, cli, tmp_path, caplog):
    once = Once(f"sqlite:///{tmp_path}/onceward.db", name="shop")
    queue, runs = made(), []
    body = json.dumps({"id": 1, "total": 7})
    trace = {"trace": {"DataType": "String", "StringValue": "t-1"}}
    ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=body, MessageAttributes=trace)
    told = work(once, queue, fails, lambda: ministack.left(queue) == 0)
    assert told == ["failed"] * (ATTEMPTS - 1) + ["parked"]
    record = record_of(once, "shop:1")
    assert (record.status, record.attempts, record.error) == (PARKED, ATTEMPTS, "OSError: poison")
    assert record.expires_at is None
    assert (kept(once, "shop:1").body, kept(once, "shop:1").user_attributes) == (
        body,
        {"trace": Attribute("String", "t-1")},
    )
    name = queue.rpartition("/")[2]
    assert caplog.text.count(f"and deleted from the queue: `onceward unpark shop:1 --to {name}`") == 1
    assert "--to QUEUE" in cli.run("unpark", "shop:1").stderr
    sent = cli.run("unpark", "shop:1", "--to", queue)
    assert (sent.returncode, b"its message was sent to" in sent.stdout) == (0, True)
    assert drain(once, queue, runs.append) == ["done"]
    assert runs == [{"id": 1, "total": 7}]
    assert ministack.left(queue) == 0
    again = cli.run("unpark", "shop:1", "--to", queue)
    assert (again.returncode, ministack.left(queue)) == (1, 0)
    assert "it is COMPLETED and is not parked" in again.stderr
    once.close()


@pytest.mark.nightly
def test_a_sealed_message_is_sent_again_with_the_seal(made, ministack, cli, tmp_path):
    flip = lambda data: bytes(byte ^ 1 for byte in data)
    (tmp_path / "shop_seal.py").write_text("flip = lambda data: bytes(byte ^ 1 for byte in data)\nSEAL = flip, flip\n")
    once = Once(f"sqlite:///{tmp_path}/onceward.db", name="shop", seal=(flip, flip))
    queue, runs = made({"id": 1, "card": "4242"}), []
    assert drain(once, queue, fails, max_attempts=1) == ["parked"]
    assert "4242" not in record_of(once, "shop:1").result
    assert "4242" not in cli.run("show", "shop:1").stdout.decode()
    refused = cli.run("unpark", "shop:1", "--to", queue)
    assert (refused.returncode, ministack.left(queue)) == (1, 0)
    assert "--seal MODULE:NAME" in refused.stderr
    assert cli.run("unpark", "shop:1", "--to", queue, "--seal", "shop_seal:SEAL").returncode == 0
    assert drain(once, queue, runs.append) == ["done"]
    assert runs == [{"id": 1, "card": "4242"}]
    once.close()


def test_with_a_redrive_policy_nothing_is_kept_and_attempts_have_no_end(once, made, ministack):
    dead = made()
    queue = made({"id": 1}, {"no": "id"}, dead=dead, receives=12)
    told = work(once, queue, fails, lambda: ministack.left(dead) == 2)
    assert (told.count("failed"), told.count("malformed"), len(told)) == (12, 12, 24)
    assert ministack.left(dead) == 2
    assert {record.status for record, _ in once.ledger.records()} == {RELEASED}


def test_the_same_message_again_is_deleted_and_another_one_stays(once, made, ministack, caplog):
    queue = made({"id": 1})
    drain(once, queue, fails, max_attempts=1)
    first = kept(once, "shop:1")
    ministack.send(queue, {"id": 1})
    assert drain(once, queue, fails, max_attempts=1) == ["parked"]
    assert ministack.left(queue) == 0
    assert kept(once, "shop:1") == first
    ministack.send(queue, {"id": 1, "total": 9})
    drain(once, queue, fails, max_attempts=1, backoff=(60, 60))
    assert ministack.left(queue) == 1
    assert kept(once, "shop:1") == first
    assert "stays in the queue, because shop:1 cannot keep it: its record keeps another message" in caplog.text


def test_a_fifo_group_goes_on_when_its_poison_message_is_kept(once, made, ministack):
    queue = made(*({"id": number, "group": "a"} for number in range(4)), fifo=True)
    runs = []

    def handler(order):
        if order["id"] == 1:
            fails(order)
        runs.append(order["id"])

    work(once, queue, handler, lambda: ministack.left(queue) == 0, max_attempts=2)
    assert runs == [0, 2, 3]
    assert kept(once, "shop:1").group == "a"
    target = Queue(queue)
    for _ in range(2):  # within the five minutes for which the queue knows a deduplication id
        unpark_to(once.ledger, "shop:1", target)
        assert "parked" in drain(once, queue, fails, max_attempts=1)
    unpark_to(once.ledger, "shop:1", target)
    assert drain(once, queue, lambda order: runs.append(order["id"])) == ["done"]
    assert runs == [0, 2, 3, 1]
    target.close()


def test_malformed_message_and_mismatch_are_kept_in_records_of_their_own(once, made, ministack, caplog):
    queue, runs = made({"id": 1, "total": 7}), []
    drain(once, queue, runs.append, fingerprint=True)
    no_key, other = ministack.send(queue, {"no": "id"}), ministack.send(queue, {"id": 1, "total": 8})
    told = work(
        once, queue, runs.append, lambda: ministack.left(queue) == 0, fingerprint=True, max_attempts=3, concurrency=2
    )
    assert sorted(told) == ["malformed"] * 3 + ["mismatch"] * 3
    assert ministack.left(queue) == 0
    assert runs == [{"id": 1, "total": 7}]
    malformed, mismatch = f"shop.malformed:{no_key}", f"shop.mismatch:{other}"
    assert kept(once, malformed).body == '{"no": "id"}'
    assert "KeyMissing" in record_of(once, malformed).error
    assert kept(once, mismatch).body == '{"id": 1, "total": 8}'
    assert "Mismatch" in record_of(once, mismatch).error
    assert record_of(once, malformed).expires_at is record_of(once, mismatch).expires_at is None
    assert caplog.text.count("is kept in the ledger under") == 2
    target = Queue(queue)
    unpark_to(once.ledger, malformed, target)
    assert drain(once, queue, runs.append, key=itemgetter("no")) == ["done"]
    assert runs[1:] == [{"no": "id"}]
    target.close()


def test_a_message_that_the_ledger_has_no_room_for_stays(once, made, ministack, caplog):
    queue = made({"id": 1, "large": "x" * 2000})
    assert drain(once, queue, fails, max_attempts=1, max_result=2000, backoff=(60, 60)) == ["parked"]
    assert ministack.left(queue) == 1
    record = record_of(once, "shop:1")
    assert (record.status, record.result, record.error) == (PARKED, None, "OSError: poison")
    assert "has no room for it" in caplog.text
    assert "give the queue a dead-letter queue, or the worker a larger max_result=" in caplog.text


def test_a_table_keeps_what_fits_into_an_item_and_says_why_key_is_parked(url):
    once = Once(url, name="shop")
    key = parked(once)
    assert kept(once, key).body == MESSAGE.body
    noise = MESSAGE._replace(body=os.urandom(500_000).hex())
    parked(once, "b", None)
    assert "no room" in drive(keeping(once.store, Place("shop:b"), kept_text(noise, ARN)), once.store)
    record = record_of(once, "shop:b")
    assert (record.status, record.result, record.error) == (PARKED, None, "card declined")
    once.close()


def test_a_kept_message_is_replayed_to_nobody_and_lost_only_when_asked(once):
    key = parked(once, "a")
    runs = []
    with pytest.raises(Parked):
        once.run("a", runs.append, "x")
    with pytest.raises(Parked):
        once.acquire("a")
    (outcome,) = once.batch(runs.append, key=lambda record: record).run(["a"])
    assert (outcome.status, outcome.value, runs) == ("parked", None, [])
    for loses in (once.ledger.unpark, lambda key: once.ledger.settle(key, 1)):
        with pytest.raises(KeepsMessage):
            loses(key)
    assert kept(once, key).body == MESSAGE.body
    assert once.ledger.settle(key, 1, message=True).result == "1"


def test_redrive_leaves_a_message_whose_key_keeps_one(once, made, ministack, monkeypatch):
    monkeypatch.setattr(redrive, "WAIT", 0)
    dead, target = made(), made()
    parked(once, "a")
    ministack.send(dead, {"id": "a"})
    (fate,) = Redrive(once, Queue(dead), Queue(target), name="shop", key="body.id").run()
    assert (fate.outcome, fate.waits) == ("refused", True)
    assert "keeps a message, which goes first: `onceward unpark KEY --to QUEUE`" in fate.reason
    assert kept(once, "shop:a").body == MESSAGE.body


def test_a_queue_of_another_kind_is_refused(once, made):
    key, queue = parked(once), Queue(made(fifo=True))
    with pytest.raises(Refusal, match="give a queue of the same kind"):
        unpark_to(once.ledger, key, queue)
    assert record_of(once, key).status == PARKED
    queue.close()


def test_show_tells_the_message_and_clear_says_that_it_goes_with_the_key(cli):
    once = cli.once(name="shop")
    parked(once, "a")
    once.acquire("b").park("no such account")
    once.close()
    assert 'not "JSON" é' in cli.run("show", "shop:a").stdout.decode()
    refused = cli.run("clear", "shop:a")
    assert refused.returncode == 1
    assert "Clearing it loses the message. Pass --yes to do it anyway" in refused.stderr
    assert cli.run("show", "shop:a").returncode == 0
    assert cli.run("clear", "shop:a", "--yes").returncode == 0
    assert cli.run("show", "shop:a").returncode == 1
    assert cli.run("clear", "shop:b").returncode == 0
