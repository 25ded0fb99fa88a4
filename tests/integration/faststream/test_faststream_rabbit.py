"""FastStream over RabbitMQ: each outcome becomes what RabbitMQ needs."""

import asyncio
from typing import Annotated

import pytest
from aio_pika.exceptions import ChannelNotFoundEntity
from faststream import Header
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue
from stations import NACK, Order, Station, charging, handled, is_poison, numbered, until

from onceward.faststream import exactly


class Shop(Station):
    def __init__(self, server):
        super().__init__(RabbitBroker(server.url, logger=None))
        self.server = server

    def subscriber(self, kind=QueueType.QUORUM, arguments=None, **options):
        queue = RabbitQueue(self.orders, queue_type=kind, arguments=arguments)
        return self.broker.subscriber(queue, **({"ack_policy": NACK} | options))

    async def publish(self, *orders):
        for order in orders:
            kind = {"content_type": "application/json"} if isinstance(order, bytes) else {}
            await self.broker.publish(order, self.orders, persist=True, **kind)

    async def take(self, queue, count):
        """Return so many messages of a queue."""
        found = []
        there = None

        async def came():
            nonlocal there
            there = there or await self.broker.declare_queue(RabbitQueue(queue, queue_type=QueueType.QUORUM))
            while (message := await there.get(no_ack=True, fail=False)) is not None:
                found.append(message)
            return len(found) >= count

        await until(came)
        return found


@pytest.fixture
def shop(rabbitmq):
    return Shop(rabbitmq)


async def test_a_copy_keeps_the_senders_headers_and_goes_nowhere_else(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(0.2, 0.4))
    def charge(order: Order, tenant: Annotated[str, Header("x-tenant")]) -> None:
        runs.append(tenant)
        if len(runs) < 2:
            raise ConnectionError("the bank is away")

    async with shop:
        other = await shop.broker.declare_queue(RabbitQueue(shop.paid, queue_type=QueueType.QUORUM))
        headers = {"x-tenant": "t1", "CC": [shop.paid]}
        await shop.broker.publish(Order(id="1"), shop.orders, persist=True, headers=headers)
        await until(lambda: len(runs) == 2)
        assert len(await shop.take(shop.paid, 1)) == 1  # of the sender, and of no copy
        assert await other.get(no_ack=True, fail=False) is None
    assert runs == ["t1", "t1"]


def test_a_busy_message_waits_in_a_retry_queue(shop, once):
    runs, held = charging(shop, once), once.acquire("1", name="charge", lease=600)

    def there():
        try:
            return shop.server.ready(f"{shop.orders}.onceward-retry.900s")
        except ChannelNotFoundEntity:
            return 0

    handled(shop, Order(id="1"), end=lambda: asyncio.to_thread(there))
    held.release()
    assert runs == []


async def test_what_cannot_be_handled_goes_to_the_dead_letters(shop, once):
    options = {"fingerprint": "order.cents", "max_attempts": 1, "backoff": (0.1, 0.1)}
    runs = charging(shop, once, is_poison, **options)
    async with shop:
        await shop.publish(Order(id="1"), b"no JSON at all")
        await until(lambda: runs == ["1"])
        letters = await shop.take(shop.dead, 1)
        await shop.publish(Order(id="1", cents=200), Order(id="poison"))
        got = [*letters, *await shop.take(shop.dead, 2)]
    told = {one.headers["onceward-status"]: one for one in got}
    assert told.keys() == {"malformed", "mismatch", "parked"}
    assert told["malformed"].body == b"no JSON at all"
    assert told["malformed"].content_type == "application/json"
    assert "the bank is away" in told["parked"].headers["onceward-reason"]
    assert told["parked"].headers["onceward-from"] == shop.orders
    assert told["parked"].headers["onceward-receives"] == "2"


def test_an_ordered_queue_is_held_back_by_a_failed_message(shop, once):
    arguments = {"x-single-active-consumer": True}
    queue = {"kind": QueueType.CLASSIC, "arguments": arguments, "channel": Channel(prefetch_count=1)}
    runs = charging(shop, once, lambda runs: len(runs) < 3, queue, order=True, backoff=(0.1, 0.1))
    handled(shop, *numbered(5), end=lambda: len(runs) == 7)
    assert runs == ["0", "0", "0", "1", "2", "3", "4"]
