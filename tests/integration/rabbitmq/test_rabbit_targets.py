"""Messages that leave for RabbitMQ once, its worker, strange messages, queues that are full or lose some, and what doctor finds."""

import asyncio
import json
import threading
import time
import uuid

import pytest

from observing import note_outcomes
from onceward import Claim
from onceward.consumers.broker import BrokerError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, open_target
from onceward.rabbitmq import RabbitRedrive, RabbitWorker, send, send_async
from onceward.rabbitmq.connection import read_address
from onceward.rabbitmq.target import RabbitTarget
from tables import each
from waiting import until, working

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def broker(rabbitmq, monkeypatch):
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)


@pytest.fixture
def queue(rabbitmq):
    return rabbitmq.queue(f"parcels-{uuid.uuid4().hex[:8]}")


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


@pytest.fixture
def shop(rabbit_shop):
    return rabbit_shop


@pytest.fixture
def orders(shop):
    return shop.orders


def test_the_message_id_is_the_key_unless_a_header_says_another(rabbitmq, orders, work, once):
    rabbitmq.publish(orders, {"n": 1}, message_id="m-1")
    rabbitmq.publish(orders, {"n": 2}, message_id="m-2", headers={"Idempotency-Key": "order-2"})
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
def test_a_queue_that_loses_dead_letters_is_refused_at_start(rabbitmq, once, orders, arguments, what):
    rabbitmq.queue(f"{orders}.onceward-dead", **arguments)
    with pytest.raises(ValueError, match=f"loses messages.*{what}"):
        RabbitWorker(once, orders, print, url=rabbitmq.url).run()


@each("settings", [{"durable": False}, {"durable": True, "auto_delete": True}])
def test_a_queue_that_does_not_last_is_refused_at_start(rabbitmq, once, settings):
    name = f"short-{uuid.uuid4().hex[:8]}"
    rabbitmq.do(lambda channel: channel.declare_queue(name, **settings))
    with pytest.raises(ValueError, match="loses messages"):
        RabbitWorker(once, name, print, url=rabbitmq.url).run()


def test_a_missing_queue_is_told(rabbitmq, once):
    with pytest.raises(BrokerError, match="there is no queue nowhere"):
        RabbitWorker(once, "nowhere", print, url=rabbitmq.url).run()


def test_a_queue_deleted_under_a_worker_ends_it(rabbitmq, once, orders):
    async def delete(channel):
        declared = await channel.declare_queue(orders, passive=True)
        return declared.declaration_result.consumer_count and await channel.queue_delete(orders)

    threading.Thread(target=until, args=(lambda: rabbitmq.do(delete),)).start()
    with pytest.raises(BrokerError, match="there is no queue"):
        RabbitWorker(once, orders, print, url=rabbitmq.url, wait=0.2).run()


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
