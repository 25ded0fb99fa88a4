"""The worker for RabbitMQ on a real node: outcomes, retries, dead letters, and queues that lose messages."""

import threading
import uuid

import pytest

from onceward.consumers.broker import BrokerError
from onceward.rabbitmq import RabbitWorker
from tables import each
from waiting import until


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
