"""The worker of a queue, against a real one: what it handles, deletes and gives back, and how it stops."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter

import pytest

from observing import note_outcomes
from onceward import Claim, Once, StoreError
from onceward.aws import Delivery, SqsWorker, on_sqs
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.queue import QueueError
from onceward.aws.sqs.visibility import Visibility
from onceward.consumers.delivery import Backoff
from onceward.consumers.polling import Polls
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, delay
from places import SOURCES
from servers.needs import numbers
from servers.proxy import Refuse
from tables import each
from waiting import until

NAMES = numbers()
PATIENCE = 30.0  # seconds that something may take on a slow machine


@pytest.fixture
def front(front, monkeypatch):
    """The proxy in front of the queues, where workers look for them, too."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", front.url)
    return front


@pytest.fixture
def once():
    return Once("memory:")


@pytest.fixture
def made(front, ministack):
    """Makes queues with messages in them, and returns their URLs."""

    def make(*bodies, fifo=False, **attributes):
        url = ministack.queue(f"worker-{next(NAMES)}{'.fifo' if fifo else ''}", **attributes)
        for body in bodies:
            group = body["group"] if fifo else None
            ministack.send(url, body, group)
        return url

    return make


def numbered(count):
    return [{"id": number} for number in range(count)]


def drain(once, queue, handler, **options):
    """Work until the queue is empty; return the outcomes."""
    outcomes = []
    note_outcomes(outcomes.append)
    options = {"key": itemgetter("id"), "name": "test", "wait": 1, **options}
    SqsWorker(once, queue, handler, **options).run(until_empty=True)
    return outcomes


@contextlib.contextmanager
def working(once, queue, handler, **options):
    """A worker in a thread, stopped at the end."""
    worker = SqsWorker(once, queue, handler, **{"key": itemgetter("id"), "name": "test", "wait": 1, **options})
    errors = []

    def run():
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def bodies(front, action):
    return [seen.body for seen in front.seen if seen.action == action]


def changes(front):
    """The times that messages were made invisible for, in order."""
    asked = bodies(front, "ChangeMessageVisibilityBatch")
    return [entry["VisibilityTimeout"] for body in asked for entry in body["Entries"]]


# --- what is handled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("concurrency", [1, 10])
def test_each_message_is_handled_once_and_deleted(once, made, ministack, kind, concurrency):
    queue, ran = made(*numbered(25)), []

    async def on_loop(order):
        await asyncio.sleep(0)
        ran.append(order["id"])

    outcomes = drain(
        once, queue, on_loop if kind == "async" else lambda order: ran.append(order["id"]), concurrency=concurrency
    )

    assert sorted(ran) == list(range(25))
    assert Counter(outcome.status for outcome in outcomes) == {"done": 25}
    assert ministack.left(queue) == 0


def test_a_message_costs_a_tenth_of_a_request_of_each_kind(once, made, front):
    queue = made(*numbered(200))

    async def handler(order):
        await asyncio.sleep(0.002)

    drain(once, queue, handler)

    asked = Counter(front.actions)
    assert asked["DeleteMessageBatch"] <= 24
    assert asked["ReceiveMessage"] <= 32  # some more ask an empty queue
    assert "ChangeMessageVisibilityBatch" not in asked


@dataclass
class Order:
    id: str
    amount: int


def test_a_handler_is_given_what_lambda_would_give_it_and_shares_its_keys(once, made, ministack):
    queue = made()
    attributes = {
        "trace": {"DataType": "String", "StringValue": "t-1"},
        "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
    }
    body = json.dumps({"id": "o-1", "amount": 7})
    ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=body, MessageAttributes=attributes)
    seen = []

    def charge(order: Order, delivery: Delivery, claim: Claim) -> int:
        seen.append((order, delivery, claim.attempt))
        return order.amount

    drain(once, queue, charge, name=None, key=None)

    ((order, delivery, attempt),) = seen
    assert (order, attempt) == (Order("o-1", 7), 1)
    raw = delivery.raw
    assert raw["eventSource"] == "aws:sqs"
    assert raw["eventSourceARN"] == ministack.queue_arn(queue)
    assert raw["awsRegion"] == "eu-west-1"
    assert raw["body"] == body
    assert raw["attributes"]["ApproximateReceiveCount"] == "1"
    assert raw["messageAttributes"]["trace"] == {
        "stringValue": "t-1",
        "stringListValues": [],
        "binaryListValues": [],
        "dataType": "String",
    }
    assert raw["messageAttributes"]["raw"]["binaryValue"] == "AAE="
    on_lambda = on_sqs(once)(charge)
    assert on_lambda({"Records": [raw]}) == {"batchItemFailures": []}
    assert len(seen) == 1, "the function on Lambda finds it done under the same key"


def test_a_message_whose_delete_was_lost_replays_and_is_deleted(once, made, front, ministack):
    queue, ran = made({"id": 1}), []
    refusals = itertools.count()
    front.rule = lambda seen: (
        Refuse("AccessDenied") if seen.action == "DeleteMessageBatch" and not next(refusals) else None
    )
    told = []
    note_outcomes(lambda o: told.append(o.status))
    with working(once, queue, ran.append, visibility=1):
        until(lambda: ministack.left(queue) == 0)

    assert ran == [{"id": 1}]
    assert told == ["done", "replayed"]


# --- what goes back ---------------------------------------------------------------------------------------------------


def test_a_message_that_fails_comes_again_after_pauses_that_double(once, made, front, ministack):
    queue, ran = made({"id": 1}), []

    def handler(order, claim: Claim):
        ran.append(time.monotonic())
        if claim.attempt < 4:
            raise OSError("not yet")

    with working(once, queue, handler, backoff=(0.5, 1.5)):
        until(lambda: ministack.left(queue) == 0)

    assert len(ran) == 4
    # Whole seconds, rounded up; half of each is jitter.
    assert changes(front) == [1, 1, 2] or changes(front) == [1, 1, 1]
    assert ran[3] - ran[0] >= 2.9


def test_pauses_double_up_to_the_longest_and_are_never_less_than_half():
    backoff = Backoff(2.0, 900.0)
    for receives, most in ((1, 2), (2, 4), (5, 32), (9, 512), (10, 900), (5000, 900)):
        pauses = [backoff.seconds(receives) for _ in range(200)]
        assert most / 2 <= min(pauses) < max(pauses) <= most


def test_what_cannot_be_handled_goes_to_its_queues_dead_letter_queue(once, made, ministack):
    dead = made()
    queue = made({"id": 1}, {"no": "id"}, {"id": 3}, dead=dead, receives=2)
    ran = []

    def handler(order):
        ran.append(order["id"])
        if order["id"] == 1:
            raise OSError("poison")

    with working(once, queue, handler, max_attempts=1):
        until(lambda: ministack.left(dead) == 2)

    assert sorted(ran) == [1, 3], "what is parked is not run again"
    assert {json.loads(message["Body"]).get("id") for message in ministack.messages(dead)} == {1, None}


def test_without_a_dead_letter_queue_what_is_malformed_waits_to_be_kept(once, made, front, ministack):
    queue = made({"no": "id"})

    with working(once, queue, print, max_attempts=3, backoff=(1, 2)):
        until(lambda: ministack.left(queue) == 0)

    assert changes(front) == [2, 2]
    assert once.ledger.stats()["PARKED"] == 1


def test_a_busy_message_comes_again_when_the_other_workers_lease_ends(once, made, front, caplog):
    queue, ran = made({"id": 1}), []
    caplog.set_level(logging.INFO)
    held = once.acquire(1, name="test", lease=40)

    (outcome,) = drain(once, queue, ran.append)

    assert outcome.status == "busy"
    assert not ran
    (away,) = changes(front)
    assert 30 <= away <= 40
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    held.release()


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_fifo_queue_keeps_the_order_of_each_group_when_messages_fail(once, made, ministack):
    sent = [{"id": number, "group": "abc"[number % 3]} for number in range(30)]
    queue = made(*sent, fifo=True)
    done, failed = [], set()

    async def handler(order):
        await asyncio.sleep(0.01)
        if order["id"] % 5 == 0 and order["id"] not in failed:
            failed.add(order["id"])
            raise OSError("once")
        done.append(order)

    told = []
    note_outcomes(told.append)
    with working(once, queue, handler, backoff=(0, 0)):
        until(lambda: ministack.left(queue) == 0)

    for group in "abc":
        assert [order for order in done if order["group"] == group] == [
            order for order in sent if order["group"] == group
        ]
    assert len(failed) == 6
    assert "deferred" in {outcome.status for outcome in told}


def test_what_follows_failure_in_its_group_waits_and_no_other_group_does(once, made, ministack):
    queue = made({"id": 1, "group": "a"}, {"id": 2, "group": "a"}, {"id": 3, "group": "b"}, fifo=True)
    ran = []

    def handler(order):
        ran.append((order["id"], time.monotonic()))
        if len([one for one, _ in ran if one == 1]) == 1 and order["id"] == 1:
            raise OSError("once")

    with working(once, queue, handler, backoff=(3, 3)):
        until(lambda: ministack.left(queue) == 0)

    at = dict(ran)
    assert Counter(one for one, _ in ran) == {1: 2, 2: 1, 3: 1}
    assert at[3] < at[1] < at[2]
    assert at[1] - ran[0][1] >= 1.9


# --- visibility -------------------------------------------------------------------------------------------------------


def test_messages_stay_invisible_while_a_handler_blocks_the_event_loop(once, made, front, ministack):
    queue, receives = made(*numbered(3)), []

    async def handler(order, delivery: Delivery):
        receives.append(delivery.raw["attributes"]["ApproximateReceiveCount"])
        time.sleep(3)

    with working(once, queue, handler, visibility=2, concurrency=3):
        until(lambda: receives)
        while ministack.left(queue):
            assert not ministack.ask("AmazonSQS.ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=0).get("Messages")
            time.sleep(0.05)

    assert receives == ["1", "1", "1"]
    assert set(changes(front)) == {2}


class Clock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Recorded:
    """Takes the place of a queue where 12 hours must pass."""

    name = "recorded"

    def __init__(self):
        self.asked, self.answer = [], None

    def change_many(self, holds):
        self.asked += holds
        return [self.answer] * len(holds)


def held_for_long(seconds, answer=None):
    """Hold one message until it is lost; return the changes asked for, by when."""
    clock, queue = Clock(), Recorded()
    queue.answer = answer
    visibility = Visibility(queue, seconds, clock)
    visibility.hold([Message("m-1", "r-1", "", {}, {})])
    asked = []
    while clock.now < 50_000:
        visibility._extend(visibility._due())
        asked += [(clock.now, span) for _, span in queue.asked]
        queue.asked.clear()
        clock.now += seconds / 10
    return asked, visibility


def test_a_message_is_held_for_twelve_hours_and_no_longer(caplog):
    asked, visibility = held_for_long(600)

    assert all(at + span <= 43_200 for at, span in asked), "SQS refuses more"
    assert asked[-1][0] + asked[-1][1] > 43_190
    assert caplog.text.count("was held for 12 hours") == 1
    visibility.give_back("r-1", 5)
    assert not visibility._back, "it is no longer ours"


def test_a_receipt_that_is_no_longer_valid_is_told_once(caplog):
    error = QueueError("queue recorded: refused", code="ReceiptHandleIsInvalid")

    asked, _ = held_for_long(600, error)

    assert len(asked) == 1
    assert caplog.text.count("m-1 could not be kept invisible") == 1


# --- how much is held -------------------------------------------------------------------------------------------------


def test_no_more_is_held_than_can_begin_soon(once, made, ministack):
    queue, go = made(*numbered(30)), threading.Event()
    running = []

    def handler(order):
        running.append(order)
        go.wait(PATIENCE)

    with working(once, queue, handler, concurrency=3) as worker:
        until(lambda: len(running) == 3)
        time.sleep(0.3)
        assert worker.in_flight == 3
        assert int(ministack.queue_attributes(queue)["ApproximateNumberOfMessagesNotVisible"]) == 3
        go.set()
        until(lambda: ministack.left(queue) == 0)


def test_polls_that_wait_for_room_go_on_when_other_polls_bring_nothing():
    """Six polls are under way and two come back full; then handlers become slow, so that there is room for one poll only."""
    took, under_way = 0.01, []

    async def receive(count):
        told = asyncio.get_running_loop().create_future()
        under_way.append(told)
        return [Message("m", "r", "", {}, {})] * (count if await told else 0)

    async def asked(count):
        async with asyncio.timeout(PATIENCE):
            while len(under_way) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # what else there is to be asked is asked now

    async def main():
        nonlocal took
        polls = Polls(receive, lambda _: None, most=10, concurrency=10, typical=lambda: took, until_empty=False)
        running = asyncio.create_task(polls.run())
        for count in range(1, 7):  # after each that comes back full there is another one
            await asked(count)
            if count < 6:
                under_way.pop().set_result(True)
                await asked(count)
                for _ in range(10):
                    polls.done()
        assert len(under_way) == 6
        for _ in range(2):
            under_way.pop(0).set_result(True)
        await asked(4)
        took = 10.0
        for _ in range(20):
            polls.done()
        await asked(4)
        assert len(under_way) == 4, "there is no room for more than these may bring"
        while under_way:
            under_way.pop().set_result(False)
        await asked(1)
        took = 0.01
        polls.done()
        polls.done()  # two that were never taken, just to say that there is room
        await asked(2)
        while under_way:
            under_way.pop().set_result(False)
        time.sleep(0.1)  # both are answered before the loop goes on
        await asked(1)
        polls.stop()
        while not running.done():
            while under_way:
                under_way.pop().set_result(False)
            await asyncio.sleep(0.01)
        await running

    asyncio.run(main())


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_stop_finishes_what_runs_and_gives_back_the_rest_uncounted(once, made, ministack):
    queue, go = made(*numbered(6)), threading.Event()
    ran = []

    def handler(order):
        ran.append(order["id"])
        if order["id"] >= 2:
            go.wait(PATIENCE)
            time.sleep(0.2)

    with working(once, queue, handler, concurrency=1, visibility=60) as worker:
        until(lambda: len(ran) == 3)
        worker.stop()
        assert worker.stopping
        go.set()

    assert ran == [0, 1, 2]
    assert ministack.left(queue) == 3
    assert len(ministack.messages(queue)) == 3, "they can be received at once"
    drain(once, queue, ran.append)
    assert once.ledger.stats()["COMPLETED"] == 6
    assert {record.attempts for record, _ in once.ledger.records()} == {1}


def test_a_stop_while_messages_are_being_claimed_begins_none_of_them(made, ministack):
    claiming = threading.Event()

    def slowly(ask):
        if ask.writes and not claiming.is_set():
            claiming.set()
            return delay(0.5)
        return None

    once = Once(Faults(MemoryStore(), slowly))
    queue, ran = made(*numbered(5)), []

    with working(once, queue, ran.append, visibility=60) as worker:
        assert claiming.wait(PATIENCE)
        worker.stop()

    assert not ran
    assert len(ministack.messages(queue)) == 5
    assert once.ledger.stats()["RELEASED"] == 5


def test_what_the_last_poll_brings_after_a_stop_is_given_back_at_once(once, made, front, ministack):
    queue, ran = made(), []

    with working(once, queue, ran.append, wait=5, visibility=60) as worker:
        until(lambda: "ReceiveMessage" in front.actions)
        worker.stop()
        ministack.send(queue, {"id": 1})

    assert not ran
    assert len(ministack.messages(queue)) == 1


def test_a_handler_that_outlasts_grace_is_cut_and_its_key_stays_claimed(once, made, ministack):
    queue, began = made({"id": 1}), threading.Event()
    told = []

    async def handler(order):
        began.set()
        await asyncio.sleep(PATIENCE)

    note_outcomes(told.append)
    with working(once, queue, handler, grace=0.2, visibility=60, backoff=(0, 0)):
        assert began.wait(PATIENCE)

    assert [outcome.status for outcome in told] == ["failed"]
    assert once.ledger.is_live("test:1")
    assert not ministack.messages(queue), "it comes again when its visibility is over"


def test_a_worker_runs_once_and_a_stop_before_that_counts(once, made):
    queue, ran = made({"id": 1}), []
    worker = SqsWorker(once, queue, ran.append, name="test", key="object.id")
    worker.stop()

    worker.run()

    assert not ran
    with pytest.raises(RuntimeError, match="runs once"):
        worker.run()


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_a_queue_that_is_not_there_is_told_before_anything(once, front):
    with pytest.raises(QueueError, match="there is no such queue"):
        SqsWorker(once, f"absent-{next(NAMES)}", print).run()


def test_a_ledger_that_is_not_there_is_told_before_anything_is_received(made, front, dynoxide):
    queue = made({"id": 1})

    with pytest.raises(StoreError, match="onceward init"):
        SqsWorker(Once(f"dynamodb://absent?endpoint={dynoxide.url}"), queue, print).run()

    assert "ReceiveMessage" not in front.actions


def test_a_queue_that_fails_for_a_while_is_asked_again(once, made, front, ministack, caplog):
    queue, ran = made({"id": 1}), []
    refused = itertools.count()
    front.rule = lambda seen: (
        Refuse("AccessDenied", 403) if seen.action == "ReceiveMessage" and next(refused) < 2 else None
    )
    with working(once, queue, ran.append):
        until(lambda: ministack.left(queue) == 0)

    assert ran == [{"id": 1}]
    assert caplog.text.count("asking again in") == 2


def test_a_queue_that_is_deleted_ends_the_worker(once, made, ministack):
    queue = made()

    with pytest.raises(QueueError) as raised, working(once, queue, print):
        ministack.ask("AmazonSQS.DeleteQueue", QueueUrl=queue)
        time.sleep(2)

    assert raised.value.code == "QueueDoesNotExist"


def test_while_the_ledger_is_away_nothing_runs_and_one_message_is_tried(made, front, proxy, url, ministack):
    queue, ran, told = made(), [], []
    away = threading.Event()
    proxy.rule = lambda seen: Refuse("InternalServerError", 500) if away.is_set() else None
    ledger = Once(url)

    def handler(order):
        ran.append(order["id"])

    note_outcomes(lambda o: told.append(o.status))
    with working(ledger, queue, handler, concurrency=5, backoff=(0, 1)):
        until(lambda: "ReceiveMessage" in front.actions)
        away.set()
        for order in numbered(30):
            ministack.send(queue, order)
        until(lambda: "failed" in told)
        time.sleep(0.5)  # polls that were on their way have arrived
        front.seen.clear()
        until(lambda: len(bodies(front, "ReceiveMessage")) >= 2)
        assert {body["MaxNumberOfMessages"] for body in bodies(front, "ReceiveMessage")} == {1}
        assert not ran
        away.clear()
        until(lambda: ministack.left(queue) == 0)

    assert sorted(ran) == list(range(30))
    ledger.close()


# --- what is said before anything runs --------------------------------------------------------------------------------


@each(
    ("options", "says"),
    [
        ({"visibility": 0}, "visibility=0"),
        ({"visibility": 1.5}, "visibility=1.5"),
        ({"wait": 21}, "wait=21"),
        ({"backoff": (5, 1)}, "backoff="),
        ({"backoff": (1, 50_000)}, "backoff="),
        ({"grace": -1}, "grace=-1"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"unwrap": "s3"}, "unwrap='s3'"),
        ({"lease": 0}, "lease=0"),
    ],
)
def test_arguments_that_do_not_fit_are_told_when_the_worker_is_made(once, aws, options, says):
    with pytest.raises(ValueError, match=says.replace("(", "\\(")):
        SqsWorker(once, "orders", print, **options)


def test_a_queue_whose_messages_would_never_be_invisible_is_refused(once, made, front):
    with pytest.raises(ValueError, match="visibility timeout is 0"):
        SqsWorker(once, made({"id": 1}, VisibilityTimeout=0), print).run()

    assert "ReceiveMessage" not in front.actions


@pytest.mark.parametrize(
    ("attributes", "options", "says"),
    [
        ({"receives": 5}, {"retention": 3600}, "forgets what is done"),
        ({"receives": 3, "VisibilityTimeout": 20}, {}, "give a lease of at most 20 s"),
        ({"receives": 5, "VisibilityTimeout": 20}, {}, "give a lease of at most 20 s"),
        ({"receives": 5, "VisibilityTimeout": 40}, {}, ""),
        ({}, {"max_attempts": 1000}, "may take 10 days, but SQS drops it after 4"),
        ({}, {"max_attempts": 3}, ""),
        ({}, {}, ""),
    ],
)
def test_what_is_unsafe_about_a_queue_is_said_at_the_start(made, caplog, attributes, options, says):
    attributes = {"dead": made(), **attributes} if "receives" in attributes else attributes

    drain(Once("memory:"), made(**attributes), print, wait=0, **options)

    assert says in caplog.text
    assert bool(says) == bool(caplog.text)


# --- the command ------------------------------------------------------------------------------------------------------

MODULE = """
import pathlib, time

def work(order):
    pathlib.Path("called").touch()
    print(f"working on {order['id']}")
    if order.get("sleep"):
        time.sleep(order["sleep"])
    if order.get("fail"):
        raise OSError("as asked")
    return {"charged": order["id"]}
"""


@pytest.fixture
def command(front, tmp_path):
    """Starts ``onceward work sqs:QUEUE`` in a folder with a module of handlers."""
    (tmp_path / "shop.py").write_text(MODULE)
    started = []

    def start(queue, *options):
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "onceward",
                "work",
                f"sqs:{queue}",
                "--call",
                "shop:work",
                "--key",
                "order.id",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "error"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def running(folder):
    """Wait until a command in ``folder`` has called its function, and return its ledger."""
    until((folder / "called").exists)
    return Once(f"sqlite:///{folder}/onceward.db").ledger


def test_the_command_drains_a_queue(made, command, ministack):
    queue = made(*numbered(12))

    status, out, err = ended(command(queue, "--until-empty", "--set", "wait=1"))

    assert status == 0, err
    assert "done 12" in err
    assert "working on 3" in out
    assert ministack.left(queue) == 0


def test_the_command_tells_of_each_message_in_json(made, command):
    queue = made({"id": 1}, {"id": 2, "fail": True}, {"no": "id"})

    status, out, err = ended(command(queue, "--until-empty", "--set", "wait=1", "--json"))

    told = [json.loads(line) for line in out.splitlines()]
    outcomes = {line["outcome"]: line for line in told if "outcome" in line}
    assert status == 1
    assert outcomes["done"]["output"] == {"charged": 1}
    assert outcomes["done"]["key"] == "shop.work:1"
    assert outcomes["failed"]["error"] == "OSError: as asked"
    assert outcomes["malformed"]["key"] is None
    assert any("as asked" in (line.get("traceback") or "") for line in told)
    assert told[-1]["summary"]["failed"] in {1, 2}  # a slow machine is given it twice
    assert "working on 1" in err, "what the function prints does not mix with the objects"


@pytest.mark.nightly
def test_the_command_compares_inputs_and_unwraps_what_sns_has_sent(made, command, ministack):
    def envelope(number, order):
        return {"Type": "Notification", "MessageId": f"sns-{number}", "Message": json.dumps(order)}

    orders = ({"id": 1}, {"id": 1, "total": 2}, {"id": 1})
    queue = made(*(envelope(number, order) for number, order in enumerate(orders)))

    options = (
        "--set",
        "unwrap=sns",
        "--fingerprint",
        "order",
        "--concurrency",
        "1",
        "--until-empty",
        "--set",
        "wait=1",
        "--json",
    )
    status, out, err = ended(command(queue, *options))

    told = Counter(json.loads(line).get("outcome") for line in out.splitlines())
    assert (told["done"], told["replayed"], told["mismatch"]) in {(1, 1, 1), (1, 0, 2)}, err
    assert status == 1


def test_a_signal_ends_the_command_when_what_runs_is_done(made, command, ministack, tmp_path):
    queue = made({"id": 1, "sleep": 2})
    process = command(queue, "--set", "wait=2", "--set", "visibility=60")
    running(tmp_path)
    process.send_signal(signal.SIGTERM)

    status, _, err = ended(process)

    assert status == 0
    assert "stopping" in err
    assert "done 1" in err
    assert ministack.left(queue) == 0


def test_a_second_signal_interrupts_and_leaves_the_key_claimed(made, command, ministack, tmp_path):
    queue = made({"id": 1, "sleep": 60})
    process = command(queue, "--set", "wait=1")
    ledger = running(tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(2)  # signals that come together are one
    process.send_signal(signal.SIGINT)

    status, _, err = ended(process)

    assert status == 130
    assert "interrupted" in err
    assert ledger.is_live("shop.work:1")


@each(
    ("arguments", "status", "says"),
    [
        (("--call", "shop:absent"), 2, "no function absent"),
        (("--call", "nowhere:f"), 2, "cannot be imported"),
        (("--key", "id ||"), 2, "key="),
        (("--set", "wait=30"), 2, "<= 20"),
        (("--store", "sqlite://"), 2, "onceward:"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_arguments(made, command, arguments, status, says):
    code, _, err = ended(command(made(), *arguments))

    assert code == status
    assert says in err
