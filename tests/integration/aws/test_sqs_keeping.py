"""Messages that no dead-letter queue takes: kept in the ledger, never dropped, and sent again when their key is unparked."""

import itertools
import json
import os
import threading
from operator import itemgetter

import pytest

from commands.command_line import Cli
from observing import note_outcomes
from onceward import Mismatch, Once, Parked, StoreError
from onceward.aws import SqsWorker
from onceward.aws.dead_letters import redrive
from onceward.aws.dead_letters.letters import Refusal, unpark_to
from onceward.aws.dead_letters.redrive import Redrive
from onceward.aws.sqs.message import Attribute, Message, alike, kept_text, read_kept
from onceward.aws.sqs.queue import Queue, QueueError
from onceward.aws.sqs.settings import QueueSettings
from onceward.consumers import keeping as kept_in_ledger
from onceward.consumers.broker import ATTEMPTS
from onceward.consumers.keeping import KeepOutcome, Place
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import message_in, parked_message
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.contract import KeepsMessage
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, at, fail_after, fail_before, late, twice
from servers.needs import numbers
from servers.proxy import Proxy, Refuse
from tables import each
from waiting import until

NAMES = numbers()
ARN = "arn:aws:sqs:eu-west-1:000000000000:orders"
ATTRIBUTES = {
    "trace": Attribute("String", "t-1"),
    "n": Attribute("Number.int", "7"),
    "raw": Attribute("Binary", b"\0\xff"),
}
MESSAGE = Message("m-1", "r-1", 'not "JSON" é\n', {"ApproximateReceiveCount": "1"}, ATTRIBUTES)
TEXT = kept_text(MESSAGE, ARN)


def keeping(store, place, text):
    return kept_in_ledger.keeping(store, place, text, alike)


@pytest.fixture
def once():
    return Once("memory:", name="shop")


@pytest.fixture
def made(aws, ministack, monkeypatch):
    """Makes queues without a dead-letter queue, and returns their URLs."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)

    def make(*bodies, fifo=False, **attributes):
        url = ministack.queue(f"keeping-{next(NAMES)}{'.fifo' if fifo else ''}", **attributes)
        for body in bodies:
            ministack.send(url, body, body["group"] if fifo else None)
        return url

    return make


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
    worker = SqsWorker(once, queue, handler, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(condition)
    finally:
        worker.stop()
        thread.join()
    return told


def fails(order):
    raise OSError("poison")


def record_of(once, key):
    return once.ledger.show(key)[0]


def kept(once, key):
    """The message that a record keeps."""
    return read_kept(message_in(record_of(once, key))).message


def parked(once, key="a", text=TEXT):
    """Park a key, and keep a message there."""
    once.acquire(key).park("card declined")
    full = ledger_key("shop", key)
    if text is not None:
        assert drive(keeping(once.store, Place(full), text), once.store) is KeepOutcome.KEPT
    return full


# --- the text ---------------------------------------------------------------------------------------------------------


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


def test_a_copy_is_like_its_message_and_another_body_or_attribute_is_not():
    copy = MESSAGE._replace(id="m-2", user_attributes=ATTRIBUTES | {"onceward-key": Attribute("String", "m-1")})
    texts = [kept_text(one, ARN) for one in (copy, MESSAGE._replace(body=""), MESSAGE._replace(user_attributes={}))]
    assert [alike(kept_text(MESSAGE, ARN), text) for text in texts] == [True, False, False]


# --- a worker of a queue without a dead-letter queue --------------------------------------------------------------------


def test_a_poison_message_is_kept_sent_again_after_a_fix_and_handled_once(made, ministack, tmp_path, caplog):
    once = Once(f"sqlite:///{tmp_path}/onceward.db", name="shop")
    queue, runs = made(), []
    body = json.dumps({"id": 1, "total": 7})
    trace = {"trace": {"DataType": "String", "StringValue": "t-1"}}
    ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=body, MessageAttributes=trace)
    name = queue.rpartition("/")[2]

    def handler(order):
        runs.append(order)
        raise OSError("poison")

    told = work(once, queue, handler, lambda: ministack.left(queue) == 0)

    assert told == ["failed"] * (ATTEMPTS - 1) + ["parked"]
    assert ministack.left(queue) == 0
    record = record_of(once, "shop:1")
    assert (record.status, record.attempts, record.error, record.expires_at) == (
        PARKED,
        ATTEMPTS,
        "OSError: poison",
        None,
    )
    assert (kept(once, "shop:1").body, kept(once, "shop:1").user_attributes) == (body, {"trace": ("String", "t-1")})
    assert (
        caplog.text.count(
            f"is kept in the ledger under shop:1, and deleted from the queue: `onceward unpark shop:1 --to {name}`"
        )
        == 1
    )

    cli = Cli(tmp_path)
    assert "--to QUEUE" in cli.run("unpark", "shop:1").stderr
    sent = cli.run("unpark", "shop:1", "--to", queue)
    assert (sent.returncode, sent.stdout) == (
        0,
        f"shop:1: its message was sent to {name}, and the key is unparked\n".encode(),
    )
    runs.clear()
    assert drain(once, queue, runs.append) == ["done"]
    assert runs == [{"id": 1, "total": 7}]
    assert ministack.left(queue) == 0
    again = cli.run("unpark", "shop:1", "--to", queue)
    assert (again.returncode, ministack.left(queue)) == (1, 0)
    assert "it is COMPLETED and is not parked" in again.stderr
    once.close()


@pytest.mark.nightly
def test_a_sealed_message_is_sent_again_with_the_seal(made, ministack, tmp_path):
    flip = lambda data: bytes(byte ^ 1 for byte in data)
    (tmp_path / "shop_seal.py").write_text("flip = lambda data: bytes(byte ^ 1 for byte in data)\nSEAL = flip, flip\n")
    once = Once(f"sqlite:///{tmp_path}/onceward.db", name="shop", seal=(flip, flip))
    queue = made({"id": 1, "card": "4242"})
    assert drain(once, queue, fails, max_attempts=1) == ["parked"]
    assert "4242" not in record_of(once, "shop:1").result

    cli = Cli(tmp_path)
    assert "4242" not in cli.run("show", "shop:1").stdout.decode()
    refused = cli.run("unpark", "shop:1", "--to", queue)
    assert (refused.returncode, ministack.left(queue)) == (1, 0)
    assert "--seal MODULE:NAME" in refused.stderr
    assert "--to" in cli.run("unpark", "shop:1", "--seal", "shop_seal:SEAL").stderr
    assert cli.run("unpark", "shop:1", "--to", queue, "--seal", "shop_seal:SEAL").returncode == 0
    runs = []
    assert drain(once, queue, runs.append) == ["done"]
    assert runs == [{"id": 1, "card": "4242"}]
    once.close()


def test_by_default_the_key_of_the_copy_is_that_of_its_message(once, made, ministack):
    queue = made({"total": 7})
    assert drain(once, queue, fails, key=None, max_attempts=1) == ["parked"]
    (key,) = (record.key for record, _ in once.ledger.records())
    target = Queue(queue)
    unpark_to(once.ledger, key, target)
    runs = []
    assert drain(once, queue, runs.append, key=None) == ["done"]
    assert [record.status for record, _ in once.ledger.records()] == [COMPLETED]
    target.close()


def test_with_a_redrive_policy_nothing_is_kept_and_attempts_have_no_end(once, made, ministack):
    dead = made()
    queue = made({"id": 1}, {"no": "id"}, dead=dead, receives=12)
    told = work(once, queue, fails, lambda: ministack.left(dead) == 2)
    assert (told.count("failed"), told.count("malformed"), len(told)) == (12, 12, 24)
    assert ministack.left(dead) == 2
    assert {record.status for record, _ in once.ledger.records()} == {RELEASED}


@each(("given", "used"), [(None, 10), (3, 3), (50, 50)])
def test_without_a_redrive_policy_and_max_attempts_there_is_a_default(given, used):
    policy = Policy(max_attempts=given)
    assert QueueSettings("orders", ARN).bounded(policy).max_attempts == used
    assert QueueSettings("orders", ARN, dead_letters=f"{ARN}-dlq", receives=5).bounded(policy).max_attempts == given


def test_a_key_that_was_parked_before_its_message_came_keeps_it_too(once, made, ministack):
    parked(once, 1, None)
    queue = made({"id": 1})
    assert drain(once, queue, fails) == ["parked"]
    assert ministack.left(queue) == 0
    assert kept(once, "shop:1").body == '{"id": 1}'
    assert record_of(once, "shop:1").error == "card declined"


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
    assert "stays in the queue, which drops it in the end: shop:1 is parked, and keeps another message" in caplog.text


def test_two_of_one_key_in_one_poll_are_both_seen_to(once, made, ministack):
    queue = made({"id": 1}, {"id": 1}, {"id": 1, "other": True})
    assert drain(once, queue, fails, max_attempts=1, backoff=(60, 60)) == ["parked"] * 3
    alone = json.loads(kept(once, "shop:1").body) == {"id": 1, "other": True}
    assert ministack.left(queue) == (2 if alone else 1), "what is like the one that is kept is deleted"


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
    assert "has no room for the 2" in caplog.text
    assert "Give the queue a dead-letter queue, or the worker a max_result=" in caplog.text


def test_a_table_keeps_what_fits_into_an_item_and_says_why_key_is_parked(url):
    once = Once(url, name="shop")
    key = parked(once)
    assert kept(once, key).body == MESSAGE.body
    noise = MESSAGE._replace(body=os.urandom(500_000).hex())
    parked(once, "b", None)
    assert drive(keeping(once.store, Place("shop:b"), kept_text(noise, ARN)), once.store) is KeepOutcome.NO_ROOM
    record = record_of(once, "shop:b")
    assert (record.status, record.result, record.error) == (PARKED, None, "card declined")
    once.close()


def test_while_the_ledger_is_away_the_message_stays_and_is_kept_later(made, ministack, caplog):
    away = [True]
    store = Faults(MemoryStore(), lambda ask: fail_before() if away[0] and keeps(ask) else None)
    once, queue = Once(store, name="shop"), made({"id": 1})
    assert "parked" in drain(once, queue, fails, max_attempts=1, backoff=(60, 60))
    assert ministack.left(queue) == 1
    assert "is not kept in the ledger yet, and comes again" in caplog.text
    away[0] = False
    target = Queue(queue)
    for message in target.receive(wait=0, visibility=0) or ():
        raise AssertionError(message)  # it is away for a minute
    ministack.send(queue, {"id": 1})
    assert drain(once, queue, fails, max_attempts=1) == ["parked"]
    assert kept(once, "shop:1").body == '{"id": 1}'
    target.close()


def keeps(ask):
    return any(write.status == PARKED and write.result is not None for write in ask.writes)


# --- a kept message is no result ----------------------------------------------------------------------------------------


def test_a_kept_message_is_replayed_to_nobody(once):
    key = parked(once, "a")
    runs = []
    with pytest.raises(Parked):
        once.run("a", runs.append, "x")
    with pytest.raises(Parked):
        once.acquire("a")
    (outcome,) = once.batch(runs.append, key=lambda record: record).run(["a"])
    assert (outcome.status, outcome.value, runs) == ("parked", None, [])
    with pytest.raises(KeepsMessage):
        once.ledger.unpark(key)
    assert kept(once, key).body == MESSAGE.body


def test_after_it_is_unparked_handler_runs_and_its_own_result_is_replayed(once, made):
    key, queue = parked(once, "a"), Queue(made())
    record = unpark_to(once.ledger, key, queue)
    assert (record.status, record.result, record.attempts) == (RELEASED, None, 0)
    assert record_of(once, key) == record
    assert [once.run("a", lambda: "receipt") for _ in range(2)] == ["receipt"] * 2
    queue.close()


def test_a_parked_key_that_keeps_a_message_still_compares_inputs(once):
    guarded = once(key="order.id", fingerprint="order", max_attempts=1)(fails)
    with pytest.raises(OSError, match="poison"):
        guarded({"id": 1})
    (key,) = (record.key for record, _ in once.ledger.records())
    drive(keeping(once.store, Place(key), TEXT), once.store)
    with pytest.raises(Parked):
        guarded({"id": 1})
    with pytest.raises(Mismatch):
        guarded({"id": 1, "total": 2})


def test_redrive_leaves_a_message_whose_key_keeps_one(once, made, ministack, monkeypatch):
    monkeypatch.setattr(redrive, "WAIT", 0)
    dead, target = made(), made()
    parked(once, "a")
    ministack.send(dead, {"id": "a"})
    (fate,) = Redrive(once, Queue(dead), Queue(target), name="shop", key="body.id").run()
    assert (fate.outcome, fate.waits) == ("refused", True)
    assert "keeps a message, which goes first: `onceward unpark KEY --to QUEUE`" in fate.reason
    assert kept(once, "shop:a").body == MESSAGE.body


# --- killed, and replies that are lost ----------------------------------------------------------------------------------


class Killed(SystemExit):
    """What a kill looks like from inside."""


PLACES = {
    "in its key's record": (Place("shop:a"), lambda once: parked(once, "a", None)),
    "again": (Place("shop:a"), lambda once: parked(once, "a")),
    "in a record of its own": (Place("shop.malformed:m-1", "KeyMissing: no id"), lambda once: None),
    "in a record of its own that was unparked": (
        Place("shop.malformed:m-1", "KeyMissing: no id"),
        lambda once: once.acquire("m-1", name="shop.malformed").release(),
    ),
}


@each(("place", "before"), PLACES.values())
@each("fault", [fail_before(), fail_after(), late(1), late(2), twice()])
def test_a_fault_at_any_exchange_is_got_over(place, before, fault):
    for number in itertools.count(1):
        once = Once(Faults(MemoryStore(), at({})), name="shop")
        before(once)
        store = once.store
        asked = len(store.asked)
        store.plan = at({asked + number: fault})
        assert drive(keeping(store, place, TEXT), store) is KeepOutcome.KEPT
        done, store.plan = len(store.asked) - asked, at({})
        assert kept(once, place.key).body == MESSAGE.body
        if done < number:
            assert done == 2, "one look and one write, without a fault"
            return


@each(("place", "before"), PLACES.values())
@each("fault", [fail_before(Killed), fail_after(Killed), late(1, Killed)])
def test_killed_at_any_exchange_the_message_is_kept_when_it_comes_again(place, before, fault):
    for number in itertools.count(1):
        once = Once(Faults(MemoryStore(), at({})), name="shop")
        before(once)
        store = once.store
        store.plan = at({len(store.asked) + number: fault})
        try:
            drive(keeping(store, place, TEXT), store)
        except Killed:
            pass  # the message is not deleted, for nobody has seen that it is kept
        else:
            assert number == 3
            return
        store.plan = at({})
        assert drive(keeping(store, place, TEXT), store) is KeepOutcome.KEPT
        assert kept(once, place.key).body == MESSAGE.body


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda f: f.kind.name)
def test_a_lost_reply_to_any_exchange_of_a_worker_loses_no_message(made, ministack, fault):
    store = Faults(MemoryStore(), at({}))
    once, queue = Once(store, name="shop"), made({"id": 1})
    drain(once, queue, fails, max_attempts=1)
    clean = len(store.asked)
    for number in range(1, clean + 1):
        store = Faults(MemoryStore(), at({number: fault}))
        once = Once(store, name="shop")
        if number == 1:  # the look at the ledger before anything is received
            with pytest.raises(StoreError):
                drain(once, queue, fails, max_attempts=1)
            continue
        ministack.send(queue, {"id": 1})
        for _ in range(3):
            drain(once, queue, fails, max_attempts=1)
        assert ministack.left(queue) == 0, number
        assert kept(once, "shop:1").body == '{"id": 1}', number


def test_a_key_unparked_in_between_lets_its_message_stay_in_the_queue():
    once = Once(Faults(MemoryStore(), at({})), name="shop")
    key = parked(once, "a", None)
    store = once.store
    done = []

    def plan(ask):
        if ask.verb == "swap" and keeps(ask) and not done:
            done.append(ask)
            Once(store.store).ledger.unpark(key)

    store.plan = plan
    assert drive(keeping(store, Place(key), TEXT), store) is KeepOutcome.LET_GO
    assert (record_of(once, key).status, record_of(once, key).result) == (RELEASED, None)


# --- a worker and an operator at once -----------------------------------------------------------------------------------


class Scene:
    """A parked key that keeps a message, a real queue, and a worker that is called by hand."""

    def __init__(self, made, plan=None):
        self.store = Faults(MemoryStore(), plan or (lambda ask: None))
        self.once = Once(self.store, name="shop")
        self.direct = Once(self.store.store, name="shop")  # the same ledger, past the faults
        self.queue = Queue(made())
        arn = self.queue.attributes()["QueueArn"]
        self.message = MESSAGE._replace(body='{"id": "a"}', id=f"m-{next(NAMES)}")
        parked(self.direct, "a", kept_text(self.message, arn))
        self.arn, self.effects = arn, []

    def work(self, once=None):
        """Handle what is in the queue as a worker does, with a handler that succeeds."""
        once = once or self.direct
        for message in self.queue.receive(wait=0):
            try:
                once.run("a", self.effects.append, message.body)
            except Parked:
                text = kept_text(message, self.arn)
                if drive(keeping(once.store, Place("shop:a"), text), once.store) is not KeepOutcome.KEPT:
                    self.queue.change_many([(message.receipt, 0)])
                    continue
            self.queue.delete_many([message.receipt])

    def resend(self, once=None):
        return unpark_to((once or self.direct).ledger, "shop:a", self.queue)

    def settle(self):
        """Do what an operator does who was told of no success, until the message is handled."""
        if message_in(record_of(self.direct, "shop:a")) is not None:
            self.resend()
        self.work()
        self.work()
        assert self.effects == ['{"id": "a"}']
        assert record_of(self.direct, "shop:a").status == COMPLETED
        self.queue.close()


def test_a_worker_that_meets_the_copy_too_early_keeps_it_to_be_sent_again(made):
    met = []

    def plan(ask):
        if ask.verb == "swap" and not met:
            met.append(ask)
            scene.work()  # takes the copy, and deletes it

    scene = Scene(made, plan)
    scene.resend(scene.once)
    assert met
    assert scene.effects == []
    scene.settle()


def test_a_worker_that_is_always_faster_makes_operator_give_up_unharmed(made):
    scene = Scene(made, lambda ask: scene.work() if ask.verb == "swap" else None)
    with pytest.raises(OncewardError, match="stop the workers"):
        scene.resend(scene.once)
    scene.settle()


@pytest.mark.parametrize("number", [1, 2])
def test_an_operator_who_unparks_while_a_worker_keeps_again_loses_nothing(made, number):
    """The worker has an older copy in hand, and the operator does everything between two of its exchanges."""
    scene = Scene(made)
    scene.queue.send(scene.message.body, scene.message.user_attributes)
    asked, done = [], []

    def plan(ask):
        if scene.work_began and len(asked) < 10:
            asked.append(ask)
            if len(asked) == number and not done:
                done.append(ask)
                scene.resend()

    scene.work_began = False
    scene.store.plan = plan
    (message,) = scene.queue.receive(wait=0)
    scene.work_began = True
    end = drive(keeping(scene.store, Place("shop:a"), kept_text(message, scene.arn)), scene.store)
    scene.work_began = False
    assert done
    assert end is KeepOutcome.LET_GO, "its key runs again, and so may this message"
    scene.queue.change_many([(message.receipt, 0)])
    scene.settle()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["alone", "with a worker"])
def test_an_operator_killed_at_any_exchange_neither_loses_nor_doubles(made, after, meanwhile):
    for point in itertools.count():
        scene = Scene(made)
        left, dead = itertools.count(), []

        def guarded(exchange, left=left, dead=dead, point=point):
            def exchanged(request):
                if dead or next(left) < point:
                    if dead:
                        raise Killed
                    return exchange(request)
                dead.append(request)
                if after:
                    exchange(request)
                raise Killed

            return exchanged

        operator = Queue(scene.queue.url())
        scene.store.exchange = guarded(scene.store.exchange)
        operator._steps.exchange = guarded(operator._steps.exchange)
        try:
            unpark_to(scene.once.ledger, "shop:a", operator)
        except Killed:
            pass
        else:
            assert point == 5, "a look at the key, the queue's attributes, a second look, the copy, and the unparking"
            scene.settle()
            return
        if meanwhile:
            scene.work()
        scene.settle()


def test_a_copy_that_could_not_be_sent_leaves_the_key_parked(made, ministack):
    scene = Scene(made)
    between = Proxy(ministack.port)
    between.rule = lambda seen: Refuse("AccessDeniedException", 403) if seen.action == "SendMessage" else None
    with pytest.raises(QueueError, match="allow sqs:SendMessage"):
        unpark_to(scene.once.ledger, "shop:a", Queue(scene.queue.url(), endpoint=between.url))
    between.stop()
    assert record_of(scene.direct, "shop:a").status == PARKED
    scene.settle()


# --- what is refused ----------------------------------------------------------------------------------------------------


def test_a_queue_of_another_kind_is_refused(once, made):
    key, queue = parked(once), Queue(made(fifo=True))
    with pytest.raises(Refusal, match="give a queue of the same kind"):
        unpark_to(once.ledger, key, queue)
    assert record_of(once, key).status == PARKED
    queue.close()


def test_message_without_room_for_its_key_is_refused_where_its_id_is_key(once, made, ministack):
    ten = {f"a{number}": Attribute("String", "x") for number in range(10)}
    queue = Queue(made())
    full = kept_text(MESSAGE._replace(user_attributes=ten), ARN)
    by_id, by_body = parked(once, "m-1", full), parked(once, "a", full)
    with pytest.raises(Refusal, match="there is no room for onceward-key"):
        unpark_to(once.ledger, by_id, queue)
    assert record_of(once, by_id).status == PARKED
    assert unpark_to(once.ledger, by_body, queue).status == RELEASED
    queue.close()


def test_a_key_that_keeps_no_message_is_refused(once, made):
    key, queue = parked(once, "a", None), Queue(made())
    with pytest.raises(OncewardError, match="it is PARKED and keeps no message"):
        unpark_to(once.ledger, key, queue)
    queue.close()


def test_a_message_kept_while_the_key_is_being_cleared_is_not_lost():
    once = Once(Faults(MemoryStore(), at({})), name="shop")
    key = parked(once, "a", None)
    store = once.store

    def plan(ask):
        if ask.verb == "delete" and not store.store.records[key].result:
            drive(keeping(store.store, Place(key), TEXT), store.store)

    store.plan = plan
    with pytest.raises(KeepsMessage):
        once.ledger.clear(key)
    assert kept(once, key).body == MESSAGE.body
    assert once.ledger.clear(key, message=True).result == TEXT


# --- the commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(aws, tmp_path):
    made = Cli(tmp_path)
    once = made.once(name="shop")
    parked(once, "a")
    once.acquire("b").park("no such account")
    once.close()
    return made


def test_show_tells_the_message_part_by_part(cli):
    lines = cli.run("show", "shop:a").stdout.decode().splitlines()
    told = {line[:14].strip(): line[15:] for line in lines if not line.startswith(" ")}
    assert told["message"] == f"m-1 of {ARN}"
    assert told["body"] == 'not "JSON" é'
    assert told["attributes"] == "trace: 't-1' (String)"
    assert told["error"] == "card declined"
    assert "result" not in told
    record = json.loads(cli.run("show", "shop:a", "--json").stdout)
    assert json.loads(record["result"]) == json.loads(TEXT)


def test_unpark_without_to_refuses_a_key_that_keeps_a_message(cli):
    refused = cli.run("unpark", "shop:a")
    assert refused.returncode == 1
    assert "`onceward unpark shop:a --to QUEUE` sends it again" in refused.stderr
    assert cli.run("unpark", "shop:b").returncode == 0
    bad = cli.run("unpark", "shop:a", "--to", "a b")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    assert "is not a queue" in bad.stderr


def test_clear_says_that_a_message_goes_with_the_key(cli):
    refused = cli.run("clear", "shop:a")
    assert refused.returncode == 1
    assert (
        "it keeps a message that is in no queue any more. Clearing it loses the message. Pass --yes to do it anyway"
        in refused.stderr
    )
    assert cli.run("show", "shop:a").returncode == 0
    assert cli.run("clear", "shop:a", "--yes").returncode == 0
    assert cli.run("show", "shop:a").returncode == 1
    assert cli.run("clear", "shop:b").returncode == 0


def test_a_command_that_is_advised_can_be_copied_to_a_shell():
    store = MemoryStore()
    drive(store.insert(parked_message("n:(a,b)", "o", '{"message": {}}', "why")), store)
    with pytest.raises(KeepsMessage, match=r"`onceward unpark 'n:\(a,b\)' --to QUEUE`"):
        Once(store).ledger.unpark("n:(a,b)")
