"""What the worker for RabbitMQ does with strange messages and full queues."""

import json
import uuid

import pytest

from observing import note_outcomes
from onceward.rabbitmq import RabbitRedrive, RabbitWorker
from waiting import until, working


class Latin(str):
    """Text that a client of another language wrote, not in UTF-8."""

    __slots__ = ()

    def encode(self, *_):
        return b"caf\xe9"


@pytest.fixture
def queue(rabbitmq):
    return rabbitmq.queue(f"copied-{uuid.uuid4().hex[:8]}")


def failing(order: dict):
    raise ZeroDivisionError


def test_headers_of_any_kind_reach_the_dead_letters(rabbitmq, once, queue):
    own = {"text": Latin("cafe"), "within": {"list": [Latin("cafe"), 5]}, "plain": "text", "none": None}
    rabbitmq.publish(queue, {"id": 1}, headers=own)
    options = {"key": "order.id", "max_attempts": 2, "backoff": (0.1, 0.1), "wait": 0.2}
    with working(RabbitWorker(once, queue, failing, url=rabbitmq.url, **options)):
        until(lambda: rabbitmq.ready(f"{queue}.onceward-dead") == 1)
    (letter,) = rabbitmq.take(f"{queue}.onceward-dead")
    assert {name: letter.headers[name] for name in own} == {
        "text": bytearray(b"caf\xe9"),
        "within": {"list": [bytearray(b"caf\xe9"), 5]},
        "plain": "text",
        "none": None,
    }
    assert rabbitmq.ready(queue) == 0


def test_a_malformed_message_names_no_key_of_another_message(rabbitmq, once, queue):
    once.acquire("victim").park("a person must look")
    rabbitmq.publish(queue, b"torn", headers={"Onceward-Key": "shop:victim", "trace": "t"}, message_id="m-1")
    RabbitWorker(once, queue, failing, url=rabbitmq.url, wait=0.2).run(until_empty=True)
    (told,) = RabbitRedrive(once, queue, url=rabbitmq.url, dry_run=True).run()
    assert told.key is None
    (letter,) = rabbitmq.take(f"{queue}.onceward-dead")
    assert letter.headers["onceward-status"] == "malformed"
    assert letter.headers["trace"] == "t"
    assert "Onceward-Key" not in letter.headers


def test_headers_that_fill_a_frame_do_not_end_the_connection(rabbitmq, once, queue, caplog):
    def refusing(order: dict):
        raise ValueError(200 * "x")  # the reason of the dead letter

    frame, own = 131_072, len(b"x-filler") + 70  # bytes: the default frame_max, and what surrounds the header
    rabbitmq.publish(queue, {"id": 1}, headers={"x-filler": "y" * (frame - own - 200)}, message_id="fits")
    rabbitmq.publish(queue, {"id": 2}, headers={"x-filler": "y" * (frame - own)}, message_id="too-large")
    options = {"key": "order.id", "max_attempts": 1, "backoff": (0.1, 0.1), "wait": 0.2}
    with working(RabbitWorker(once, queue, refusing, url=rabbitmq.url, **options)):
        until(lambda: rabbitmq.ready(f"{queue}.onceward-dead") == 1)
        until(lambda: "frame_max" in caplog.text)
    (letter,) = rabbitmq.take(f"{queue}.onceward-dead")
    assert letter.message_id == "fits"
    assert rabbitmq.ready(queue) == 1
    assert "FRAME_ERROR" not in caplog.text


def test_a_letter_waits_until_a_full_dead_letter_queue_has_room(rabbitmq, once, queue):
    dead = f"{queue}.onceward-dead"
    options = {"url": rabbitmq.url, "key": "order.id", "max_attempts": 1, "backoff": (0.1, 0.1), "wait": 0.2}
    RabbitWorker(once, queue, failing, **options).run(until_empty=True)  # declares the other queues
    limit = json.dumps({"max-length-bytes": 1000, "overflow": "reject-publish"})
    rabbitmq.control("set_policy", queue, f"^{dead}$", limit)
    rabbitmq.publish(dead, b"x" * 5000)
    rabbitmq.publish(queue, {"id": 1}, {"id": 2})
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    with working(RabbitWorker(once, queue, failing, **options)):
        until(lambda: told.count("parked") > 3)
        large, *letters = rabbitmq.take(dead)  # a letter may find the room before this has seen the queue empty
        until(lambda: rabbitmq.ready(dead) + len(letters) == 2)
    letters += rabbitmq.take(dead)
    assert len(large.body) == 5000
    assert sorted(json.loads(letter.body)["id"] for letter in letters) == [1, 2]
    assert once.ledger.show("shop:1")[0].attempts == 1
