"""The worker for RabbitMQ on a real node: outcomes, strange messages, full queues, and queues that lose messages."""

import json
import threading
import uuid

import pytest

from observing import note_outcomes
from onceward.consumers.broker import BrokerError
from onceward.rabbitmq import RabbitRedrive, RabbitWorker
from tables import each
from waiting import until, working


@pytest.fixture
def shop(rabbit_shop):
    return rabbit_shop


@pytest.fixture
def queue(shop):
    return shop.orders


def test_the_message_id_is_the_key_unless_a_header_says_another(rabbitmq, queue, work, once):
    rabbitmq.publish(queue, {"n": 1}, message_id="m-1")
    rabbitmq.publish(queue, {"n": 2}, message_id="m-2", headers={"Idempotency-Key": "order-2"})
    work(lambda order: None, key=None)
    until(lambda: once.ledger.stats()["COMPLETED"] == 2)
    assert {record.key for record, _ in once.ledger.records()} == {"shop:m-1", "shop:order-2"}


@each(
    ("arguments", "what"),
    [
        ({"x_message_ttl": 60_000}, "x-message-ttl"),
        ({"x_max_length": 5}, "x-max-length"),
        ({"x_delivery_limit": 5}, "x-delivery-limit"),
        ({"kind": "stream"}, "stream"),
        ({"x_expires": 60_000}, "x-expires"),
    ],
)
def test_a_queue_that_loses_messages_is_refused_at_start(rabbitmq, once, arguments, what):
    name = rabbitmq.queue(f"bad-{uuid.uuid4().hex[:8]}", **arguments)
    with pytest.raises(ValueError, match=f"loses messages.*{what}"):
        RabbitWorker(once, name, print, url=rabbitmq.url).run()


@pytest.mark.parametrize(
    ("arguments", "what"), [({"x_max_length": 1}, "oldest messages"), ({"x_message_ttl": 60_000}, "wait too long")]
)
def test_a_queue_that_loses_dead_letters_is_refused_at_start(rabbitmq, once, queue, arguments, what):
    rabbitmq.queue(f"{queue}.onceward-dead", **arguments)
    with pytest.raises(ValueError, match=f"loses dead letters.*{what}"):
        RabbitWorker(once, queue, print, url=rabbitmq.url).run()


@each("settings", [{"durable": False}, {"durable": True, "auto_delete": True}])
def test_a_queue_that_does_not_last_is_refused_at_start(rabbitmq, once, settings):
    name = f"short-{uuid.uuid4().hex[:8]}"
    rabbitmq.do(lambda channel: channel.declare_queue(name, **settings))
    with pytest.raises(ValueError, match="loses messages"):
        RabbitWorker(once, name, print, url=rabbitmq.url).run()


def test_a_missing_queue_is_told(rabbitmq, once):
    with pytest.raises(BrokerError, match="there is no queue nowhere"):
        RabbitWorker(once, "nowhere", print, url=rabbitmq.url).run()


def test_a_queue_deleted_under_a_worker_ends_it(rabbitmq, once, queue):
    async def delete(channel):
        declared = await channel.declare_queue(queue, passive=True)
        return declared.declaration_result.consumer_count and await channel.queue_delete(queue)

    threading.Thread(target=until, args=(lambda: rabbitmq.do(delete),)).start()
    with pytest.raises(BrokerError, match="there is no queue"):
        RabbitWorker(once, queue, print, url=rabbitmq.url, wait=0.2).run()


class Latin(str):
    """Text that a client of another language wrote, not in UTF-8."""

    __slots__ = ()

    def encode(self, *_):
        return b"caf\xe9"


@pytest.fixture
def copied(rabbitmq):
    return rabbitmq.queue(f"copied-{uuid.uuid4().hex[:8]}")


def failing(order: dict):
    raise ZeroDivisionError


def test_headers_of_any_kind_reach_the_dead_letters(rabbitmq, once, copied):
    own = {"text": Latin("cafe"), "within": {"list": [Latin("cafe"), 5]}, "plain": "text", "none": None}
    rabbitmq.publish(copied, {"id": 1}, headers=own)
    options = {"key": "order.id", "max_attempts": 2, "backoff": (0.1, 0.1), "wait": 0.2}
    with working(RabbitWorker(once, copied, failing, url=rabbitmq.url, **options)):
        until(lambda: rabbitmq.ready(f"{copied}.onceward-dead") == 1)
    (letter,) = rabbitmq.take(f"{copied}.onceward-dead")
    assert {name: letter.headers[name] for name in own} == {
        "text": bytearray(b"caf\xe9"),
        "within": {"list": [bytearray(b"caf\xe9"), 5]},
        "plain": "text",
        "none": None,
    }
    assert rabbitmq.ready(copied) == 0


def test_a_malformed_message_names_no_key_of_another_message(rabbitmq, once, copied):
    once.acquire("victim").park("a person must look")
    rabbitmq.publish(copied, b"torn", headers={"Onceward-Key": "shop:victim", "trace": "t"}, message_id="m-1")
    RabbitWorker(once, copied, failing, url=rabbitmq.url, wait=0.2).run(until_empty=True)
    (told,) = RabbitRedrive(once, copied, url=rabbitmq.url, dry_run=True).run()
    assert told.key is None
    (letter,) = rabbitmq.take(f"{copied}.onceward-dead")
    assert letter.headers["onceward-status"] == "malformed"
    assert letter.headers["trace"] == "t"
    assert "Onceward-Key" not in letter.headers


def test_headers_that_fill_a_frame_do_not_end_the_connection(rabbitmq, once, copied, caplog):
    def refusing(order: dict):
        raise ValueError(200 * "x")  # the reason of the dead letter

    frame, own = 131_072, len(b"x-filler") + 70  # bytes: the default frame_max, and what surrounds the header
    rabbitmq.publish(copied, {"id": 1}, headers={"x-filler": "y" * (frame - own - 200)}, message_id="fits")
    rabbitmq.publish(copied, {"id": 2}, headers={"x-filler": "y" * (frame - own)}, message_id="too-large")
    options = {"key": "order.id", "max_attempts": 1, "backoff": (0.1, 0.1), "wait": 0.2}
    with working(RabbitWorker(once, copied, refusing, url=rabbitmq.url, **options)):
        until(lambda: rabbitmq.ready(f"{copied}.onceward-dead") == 1)
        until(lambda: "frame_max" in caplog.text)
    (letter,) = rabbitmq.take(f"{copied}.onceward-dead")
    assert letter.message_id == "fits"
    assert rabbitmq.ready(copied) == 1
    assert "FRAME_ERROR" not in caplog.text


def test_a_letter_waits_until_a_full_dead_letter_queue_has_room(rabbitmq, once, copied):
    dead = f"{copied}.onceward-dead"
    options = {"url": rabbitmq.url, "key": "order.id", "max_attempts": 1, "backoff": (0.1, 0.1), "wait": 0.2}
    RabbitWorker(once, copied, failing, **options).run(until_empty=True)  # declares the other queues
    limit = json.dumps({"max-length-bytes": 1000, "overflow": "reject-publish"})
    rabbitmq.control("set_policy", copied, f"^{dead}$", limit)
    rabbitmq.publish(dead, b"x" * 5000)
    rabbitmq.publish(copied, {"id": 1}, {"id": 2})
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    with working(RabbitWorker(once, copied, failing, **options)):
        until(lambda: told.count("parked") > 3)
        large, *letters = rabbitmq.take(dead)  # a letter may find the room before this has seen the queue empty
        until(lambda: rabbitmq.ready(dead) + len(letters) == 2)
    letters += rabbitmq.take(dead)
    assert len(large.body) == 5000
    assert sorted(json.loads(letter.body)["id"] for letter in letters) == [1, 2]
    assert once.ledger.show("shop:1")[0].attempts == 1
