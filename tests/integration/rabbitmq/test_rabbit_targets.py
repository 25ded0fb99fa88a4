"""Messages that leave with a record for RabbitMQ or are sent once, and what doctor finds about a queue, on a real node."""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid

import pytest

from fixtures import closing_fixture
from onceward import Claim, Once, Policy
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, open_target
from onceward.rabbitmq import send, send_async
from onceward.rabbitmq.connection import read_address
from onceward.rabbitmq.doctor import rabbitmq_findings
from onceward.rabbitmq.target import RabbitTarget
from places import SOURCES
from tables import each

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def broker(rabbitmq, monkeypatch):
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)


@pytest.fixture
def queue(rabbitmq):
    return rabbitmq.queue(f"parcels-{uuid.uuid4().hex[:8]}")


once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db", name="shop"))


def taken(rabbitmq, queue, count=1):
    end = time.monotonic() + PATIENCE
    found = []
    while len(found) < count:
        assert time.monotonic() < end
        found += rabbitmq.take(queue)
    return found


def test_a_message_leaves_with_its_record_and_has_its_key(rabbitmq, queue, once):
    @once(key="order.id", name="place")
    def place(order: dict, claim: Claim) -> str:
        return claim.send(f"amqp:{queue}", {"order": order["id"]}, headers={"who": "us"})

    key = place({"id": 7})
    (message,) = taken(rabbitmq, queue)
    assert json.loads(message.body) == {"order": 7}
    assert (message.message_id, message.headers["Idempotency-Key"], message.headers["who"]) == (key, key, "us")
    assert (message.content_type, message.delivery_mode) == ("application/json", 2)


def test_a_missing_exchange_is_told_and_one_that_is_made_later_is_used(rabbitmq, queue):
    name = f"shop-{uuid.uuid4().hex}"
    target = RabbitTarget(f"amqp:?exchange={name}&key=order.paid")
    (told,) = target.send([OutboxMessage("k", "{}")])
    assert isinstance(told, MessageNotSent)
    assert "no exchange" in str(told)

    async def bind(channel):
        exchange = await channel.declare_exchange(name, "topic", durable=True)
        await (await channel.get_queue(queue)).bind(exchange, "order.*")

    rabbitmq.do(bind)
    assert target.send([OutboxMessage("k", "{}")]) == [None]
    assert [message.message_id for message in taken(rabbitmq, queue)] == ["k"]
    target.close()


def test_a_broker_that_is_away_leaves_messages_unsent(monkeypatch):
    monkeypatch.setenv("AMQP_URL", "amqp://guest:secret@127.0.0.1:1/")
    target = RabbitTarget("amqp:orders")
    (told,) = target.send([OutboxMessage("k", "{}")])
    assert isinstance(told, MessageNotSent)
    assert "secret" not in str(told)


@each("message", [OutboxMessage("k", "{}", delay=3.0), OutboxMessage("k", "{}", group="g")])
def test_what_rabbitmq_cannot_do_is_refused(message):
    target = open_target("amqp:orders")
    with pytest.raises(ValueError, match="RabbitMQ has no"):
        target.check(message)
    assert [type(error) for error in target.send([message])] == [MessageRefused]


def test_a_header_that_ends_the_channel_is_refused_and_the_others_of_its_batch_are_sent_once(rabbitmq, queue):
    target = RabbitTarget(f"amqp:{queue}")
    messages = [OutboxMessage("a", "1"), OutboxMessage("b", "2", {"CC": "bob@shop.example"}), OutboxMessage("c", "3")]
    told = target.send(messages)
    assert [type(one) for one in told] == [type(None), MessageRefused, type(None)]
    assert sorted(message.message_id for message in taken(rabbitmq, queue, 2)) == ["a", "c"]
    target.close()


@each(
    ("address", "expected"),
    [
        ("amqp:orders", ("amqp://u:p@rabbit:5673/shop?heartbeat=9", "", "orders")),
        ("amqp://other/v?queue=a%20b", ("amqp://u:p@other/v?heartbeat=9", "", "a b")),
        ("amqps://other:5671?exchange=e&key=k", ("amqps://u:p@other:5671/?heartbeat=9", "e", "k")),
    ],
)
def test_an_address_takes_its_password_from_the_environment(monkeypatch, address, expected):
    monkeypatch.setenv("AMQP_URL", "amqp://u:p@rabbit:5673/shop?heartbeat=9")
    assert tuple(read_address(address)) == expected


@each("address", ["amqp:", "amqp://u:p@host/?queue=a", "amqp://host/v", "amqp:a?exchange=b", "amqp:a?colour=red"])
def test_an_address_that_says_too_little_or_too_much_is_refused(address):
    with pytest.raises(ValueError, match="amqp"):
        read_address(address)


def test_a_message_is_sent_once_for_its_key(rabbitmq, queue, once):
    first = send(once, f"amqp:{queue}", {"id": 1}, key="order-1")
    assert send(once, f"amqp:{queue}", {"id": 1}, key="order-1") == first
    assert asyncio.run(send_async(once, f"amqp:{queue}", {"id": 1}, key="order-1")) == first
    second = asyncio.run(send_async(once, f"amqp:{queue}", "plain text", key="order-2"))
    messages = {message.message_id: message for message in taken(rabbitmq, queue, 2)}
    assert set(messages) == {first, second}
    assert (messages[second].body, messages[second].content_type) == (b"plain text", "text/plain")


def test_a_send_that_no_queue_takes_raises_and_is_sent_later(rabbitmq, once):
    name = f"later-{uuid.uuid4().hex[:8]}"
    with pytest.raises(MessageNotSent, match="no queue takes"):
        send(once, f"amqp:{name}", {}, key=1)
    rabbitmq.queue(name)
    send(once, f"amqp:{name}", {}, key=1)
    assert len(taken(rabbitmq, name)) == 1


def levels(address):
    return {(finding.level, finding.check) for finding in rabbitmq_findings(address, Policy())}


def test_a_quorum_queue_is_well_and_policies_are_skipped(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}")
    assert levels(f"amqp:{queue}") == {("ok", "queue"), ("skipped", "policies"), ("ok", "max_attempts")}
    rabbitmq.queue(f"{queue}.onceward-dead")
    assert ("ok", "dead letters") in levels(f"amqp:{queue}")
    rabbitmq.publish(f"{queue}.onceward-dead", {})
    assert ("warning", "dead letters") in levels(f"amqp:{queue}")


def test_a_queue_that_drops_messages_is_an_error_and_a_classic_one_a_warning(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}", kind="classic", x_max_length=5)
    assert {("error", "queue"), ("warning", "queue")} <= levels(f"amqp:{queue}")


def test_a_missing_queue_and_a_broker_that_is_away_are_told(monkeypatch):
    assert ("error", "queue") in levels(f"amqp:nowhere-{uuid.uuid4().hex}")
    monkeypatch.setenv("AMQP_URL", "amqp://guest:secret@127.0.0.1:1/")
    assert levels("amqp:orders") == {("unknown", "queue")}


def test_the_command_shows_it_and_ends_with_its_status(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}", x_delivery_limit=3)
    command = [sys.executable, "-m", "onceward", "doctor", "--queue", f"amqp:{queue}"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "ONCEWARD_STORE": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1, done
    assert "x-delivery-limit" in done.stdout
