"""A broker is one class: this toy, an at-least-once queue in memory, has all that a worker does without any other file.

Workers and ASGI applications send what others have left, unless they are told not to.
"""

import asyncio
import itertools
import json
import threading
import time
import warnings
from queue import SimpleQueue
from typing import NamedTuple

import pytest
from starlette.applications import Starlette

from faults.injected import Faults, fail_before, when
from fixtures import closing_fixture
from observing import note_outcomes
from onceward import Once, OncewardError, StoreError
from onceward.consumers.broker import Broker, BrokerError
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.consumers.keeping import opened_kept
from onceward.consumers.worker import Worker
from onceward.core.protocol import message_in
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED
from onceward.stores.memory import MemoryStore
from onceward.web import AsgiIdempotency, Rules, Scope
from queues.boxes import Box, left_by_a_crash
from waiting import until
from waiting import working as at_work

with warnings.catch_warnings():  # of httpx, whose successor Starlette prefers
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

PATIENCE = 20.0


class ToyMessage(NamedTuple):
    """A message, and how often it was received with this time."""

    id: str
    body: str
    receives: int = 0


class ToyBroker(Broker[ToyMessage]):
    """An at-least-once queue in memory, which brings every message again until it is acknowledged."""

    name = "toy"

    def __init__(self, *bodies, copies=1, dead_letters="ledger", ordered=False):
        self.dead_letters, self.ordered = dead_letters, ordered
        self.waiting = SimpleQueue()
        for number, body in enumerate(bodies):
            for _ in range(copies):
                self.waiting.put(ToyMessage(f"m-{number}", body))
        self.held, self.acknowledged, self.away, self.left = [], [], [], []
        self.trouble = []  # errors that the next calls of receive() end with
        self.published, self.refuses = [], 0  # dead letters, and how many of them it refuses to store
        self.closed = False

    async def open(self, policy):
        return policy if self.dead_letters == "broker" or policy.max_attempts else policy._replace(max_attempts=3)

    async def receive(self, count):
        if self.trouble:
            raise self.trouble.pop(0)
        if self.waiting.empty():
            await asyncio.sleep(0.05)
        got = []
        while len(got) < count and not self.waiting.empty():
            message = self.waiting.get()
            got.append(message._replace(receives=message.receives + 1))
        self.held += got
        return got

    def delivery(self, message):
        delivery = Delivery("toy", message)
        delivery.id = delivery.key = message.id
        delivery.group = "all"
        delivery.body = message.body
        if message.body == "torn":
            delivery.fault = MalformedRecord("the message is torn")
        return delivery

    def receives(self, message):
        return message.receives

    def acknowledge(self, message):
        self.held.remove(message)
        self.acknowledged.append(message.id)

    def give_back(self, message, seconds=0.0):
        self.held.remove(message)
        self.away.append((message.id, seconds))
        self.waiting.put(message)  # at once, for a test does not wait

    def leave(self, message):
        self.held.remove(message)
        self.left.append(message.id)

    def kept_text(self, message):
        return json.dumps({"message": {"id": message.id, "body": message.body}})

    async def dead_letter(self, message, headers):
        if self.refuses:
            self.refuses -= 1
            raise BrokerError("the dead letters are away")
        self.published.append((message, headers))

    async def close(self):
        self.closed = True


once = closing_fixture(lambda: Once("memory:", name="shop"))


def order(number):
    return json.dumps({"id": number})


def record(once, key):
    return once.ledger.show(key, whole=True)[0]


def drain(once, broker, handler, **options):
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    worker = Worker(once, broker, handler, **options)
    worker.run(until_empty=True)
    assert broker.held == []
    assert broker.closed
    return told


def working(once, broker, handler, **options):
    return at_work(Worker(once, broker, handler, **options))


def test_a_message_that_comes_three_times_takes_effect_once(once):
    effects = []
    broker = ToyBroker(order(1), order(2), copies=3)
    told = drain(once, broker, lambda order: effects.append(order["id"]), key="order.id")
    assert sorted(effects) == [1, 2]
    assert sorted(broker.acknowledged) == ["m-0"] * 3 + ["m-1"] * 3
    assert sorted(told) == ["done"] * 2 + ["replayed"] * 4
    assert record(once, "shop:1").status == COMPLETED


def test_one_that_failed_comes_again_after_a_pause_that_doubles(once):
    tries = []

    def handler(order):
        tries.append(order)
        if len(tries) < 4:
            raise ZeroDivisionError

    broker = ToyBroker(order(1), dead_letters="broker")
    assert drain(once, broker, handler, backoff=(2.0, 900.0)) == ["failed"] * 3 + ["done"]
    pauses = [seconds for _, seconds in broker.away]
    assert all(least <= pause <= 2 * least for pause, least in zip(pauses, (1.0, 2.0, 4.0), strict=True))
    assert broker.acknowledged == ["m-0"]


def fail(order):
    raise ZeroDivisionError("an odd\norder")


def test_what_is_parked_is_left_to_a_broker_with_dead_letters(once):
    broker = ToyBroker(order(1), dead_letters="broker")

    def give_back(message, seconds=0.0):
        broker.held.remove(message)
        broker.away.append(seconds)
        if message.receives < 3:
            broker.waiting.put(message)

    broker.give_back = give_back
    assert drain(once, broker, fail, key="order.id", backoff=(7.0, 7.0), on_error="park") == ["parked"] * 3
    assert broker.acknowledged == []
    assert broker.away[1:] == [7.0, 7.0]
    assert message_in(record(once, "shop:1")) is None


def test_what_cannot_be_handled_is_published_with_its_reason_then_acknowledged(once):
    broker = ToyBroker(order(1), "torn", dead_letters="publish")
    told = drain(once, broker, fail, key="order.id", backoff=(0, 0), max_attempts=2)
    assert sorted(told) == ["failed", "malformed", "parked"]
    assert sorted(broker.acknowledged) == ["m-0", "m-1"]
    letters = {message.id: headers for message, headers in broker.published}
    status = {"onceward-status": "malformed", "onceward-reason": "MalformedRecord: the message is torn"}
    assert letters["m-1"] == status | {"onceward-from": "toy", "onceward-receives": "1"}
    parked = letters["m-0"]
    assert (parked["onceward-status"], parked["onceward-key"], parked["onceward-receives"]) == ("parked", "shop:1", "2")
    assert "an odd order" in parked["onceward-reason"]
    assert message_in(record(once, "shop:1")) is None


def test_a_message_that_no_dead_letters_take_comes_again(once):
    broker = ToyBroker("torn", dead_letters="publish")
    broker.refuses = 2
    assert drain(once, broker, print, backoff=(0, 0)) == ["malformed"] * 3
    assert broker.acknowledged == ["m-0"]
    assert [headers["onceward-receives"] for _, headers in broker.published] == ["3"]
    kept = ToyBroker("torn")
    assert drain(once, kept, print, backoff=(0, 0)) == ["malformed"] * 3
    assert kept.acknowledged == ["m-0"]
    assert json.loads(message_in(record(once, "shop.malformed:m-0")))["message"]["body"] == "torn"


def test_a_stop_waits_for_what_runs_and_gives_back_what_has_not_begun(once):
    begun, go, ran = threading.Event(), threading.Event(), []

    def handler(order):
        begun.set()
        go.wait(PATIENCE)
        ran.append(order["id"])

    broker = ToyBroker(*map(order, range(5)), ordered=True)
    broker.give_back = lambda message, seconds=0.0: (broker.held.remove(message), broker.away.append(message.id))
    with working(once, broker, handler, key="order.id", concurrency=5) as worker:
        assert begun.wait(PATIENCE)
        until(lambda: worker.in_flight == 5)
        worker.stop()
        threading.Timer(0.2, go.set).start()
    assert ran == [0]
    assert broker.acknowledged == ["m-0"]
    assert sorted(broker.away) == ["m-1", "m-2", "m-3", "m-4"]
    assert broker.held == []
    assert broker.closed


@pytest.mark.parametrize("ordered", [False, True])
def test_a_key_that_a_lapse_parks_is_claimed_when_its_handler_begins(once, ordered):
    claimed = []

    def handler(order):
        claimed.append([record.status for record, _ in once.ledger.records()].count(IN_PROGRESS))

    broker = ToyBroker(*map(order, range(40)), ordered=ordered)
    assert drain(once, broker, handler, key="order.id", concurrency=2, on_lapse="park") == ["done"] * 40
    assert max(claimed) <= (1 if ordered else 2)


def test_handlers_that_outlast_the_grace_leave_their_messages_to_broker(once):
    begun, go = threading.Event(), threading.Event()

    def handler(order):
        begun.set()
        go.wait(PATIENCE)

    broker = ToyBroker(order(1))
    with working(once, broker, handler, key="order.id", grace=0.1):
        assert begun.wait(PATIENCE)
    go.set()
    assert broker.acknowledged == []
    assert broker.held == []
    assert broker.left == ["m-0"]


def test_a_broker_that_fails_is_asked_again_and_one_gone_ends_the_worker(once):
    broker, gone = ToyBroker(order(1)), BrokerError("the queue is deleted")
    gone.gone = True
    broker.trouble = [BrokerError("no answer")]
    with working(once, broker, lambda order: None, key="order.id"):
        until(lambda: broker.acknowledged == ["m-0"])
    broker = ToyBroker()
    broker.trouble = [gone]
    with pytest.raises(BrokerError, match="deleted"):
        Worker(once, broker, print).run()
    assert broker.closed


def test_nothing_is_received_when_the_ledger_is_away_at_the_start():
    once = Once(Faults(Once("memory:").store, when(lambda _: True, fail_before())), name="shop")
    broker = ToyBroker(order(1))
    with pytest.raises(StoreError):
        Worker(once, broker, print).run()
    assert broker.waiting.qsize() == 1
    assert broker.closed


def numbered_seal():
    """A seal that makes another token each time, as encryption does."""
    numbers = itertools.count()
    flip = lambda data: bytes(byte ^ 1 for byte in data)
    return (lambda plain: b"%d:" % next(numbers) + flip(plain)), lambda token: flip(token.partition(b":")[2])


def test_a_kept_message_is_sealed_and_known_when_it_comes_again(caplog):
    seal = numbered_seal()
    once = Once("memory:", name="shop", seal=seal)
    secret = json.dumps({"id": 1, "card": "4242"})
    for _ in range(2):
        assert drain(once, ToyBroker(secret), fail, key="order.id", max_attempts=1) == ["parked"]
    held = record(once, "shop:1")
    assert held.status == PARKED
    assert "4242" not in held.result
    assert json.loads(opened_kept("shop:1", held.result, seal))["message"]["body"] == secret
    with pytest.raises(OncewardError, match="no seal was given"):
        opened_kept("shop:1", held.result, None)
    assert "with --seal" in caplog.text
    malformed = ToyBroker('{"card": 4242}')
    assert drain(once, malformed, lambda order: order, key="order.id", max_attempts=1) == ["malformed"]
    held = record(once, "shop.malformed:m-0")
    assert "sealed" in held.error  # why it is kept, too
    assert "4242" not in held.error + held.result
    once.close()


@pytest.mark.parametrize("close", [lambda plain: 1 / 0, lambda plain: plain.replace(b"4242", b"****")])
def test_a_message_that_cannot_be_sealed_is_not_kept_in_plain_text(close, caplog):
    once = Once("memory:", name="shop", seal=(close, bytes))
    broker = ToyBroker(json.dumps({"id": 1, "card": "4242"}))
    broker.give_back = lambda message, seconds=0.0: broker.held.remove(message)
    assert drain(once, broker, fail, key="order.id", max_attempts=1) == ["parked"]
    assert broker.acknowledged == []
    assert record(once, "shop:1").result is None
    assert "cannot be sealed" in caplog.text
    once.close()


@pytest.fixture
def left(clock, monkeypatch):
    """A ledger with a message that is due, and where it goes."""
    monkeypatch.setattr("onceward.outbox.relay.EVERY", 0.02)
    box, once = Box(), Once(MemoryStore(clock), name="n")
    left_by_a_crash(once, monkeypatch, "k", (box.address, "left"))
    clock.advance(31.0)
    return once, box


def relays():
    return [thread for thread in threading.enumerate() if thread.name == "onceward-relay"]


def test_a_worker_sends_what_a_crash_has_left_unless_it_is_told_not_to(left):
    once, box = left
    with working(once, ToyBroker(), len, relay=False):
        time.sleep(0.3)
        assert relays() == box.bodies == []
    with working(once, ToyBroker(), len):
        until(lambda: box.bodies == ["left"])
    assert relays() == []


def test_an_asgi_application_sends_what_a_crash_has_left_but_not_on_lambda(left, monkeypatch):
    once, box = left
    served = TestClient(AsgiIdempotency(Starlette(), once, Rules(scope=Scope.EVERYBODY)))
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    with served:
        time.sleep(0.3)
        assert relays() == box.bodies == []
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME")
    with served:
        until(lambda: box.bodies == ["left"])
    assert relays() == []
