"""FastStream over RabbitMQ: each outcome becomes what RabbitMQ needs."""

import asyncio
import uuid
from typing import Annotated

import pytest
from aio_pika.exceptions import ChannelNotFoundEntity
from faststream import AckPolicy, Header
from faststream.exceptions import SetupError
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue
from stations import Order, Receipt, until

from onceward import Once
from onceward.faststream import exactly

NACK = AckPolicy.NACK_ON_ERROR


class Shop:
    """A queue of its own on the run's server, and a broker of FastStream."""

    def __init__(self, server):
        self.name = f"s{uuid.uuid4().hex[:8]}"
        self.broker = RabbitBroker(server.url, logger=None)
        self.server = server
        self.orders, self.paid = f"{self.name}.orders", f"{self.name}.paid"
        self.dead = f"{self.orders}.onceward-dead"
        self.deliveries = 0

    def subscriber(self, kind=QueueType.QUORUM, arguments=None, **options):
        queue = RabbitQueue(self.orders, queue_type=kind, arguments=arguments)
        return self.broker.subscriber(queue, **({"ack_policy": NACK} | options))

    async def __aenter__(self):
        await self.broker.start()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()

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


@pytest.fixture
def once(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/ledger.db", lease=30)
    yield made
    made.close()


def test_a_duplicate_gets_the_recorded_reply_under_the_same_key(shop, once):
    runs = []

    @shop.subscriber()
    @shop.broker.publisher(RabbitQueue(shop.paid, queue_type=QueueType.QUORUM), persist=True)
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> Receipt:
        runs.append(order.id)
        return Receipt(order=order.id, run=len(runs))

    async def main():
        async with shop:
            await shop.broker.declare_queue(RabbitQueue(shop.paid, queue_type=QueueType.QUORUM))
            await shop.publish(Order(id="1"))
            first = await shop.take(shop.paid, 1)
            await shop.publish(Order(id="1"))
            return [*first, *await shop.take(shop.paid, 1)]

    came = asyncio.run(main())
    assert runs == ["1"]
    assert came[0].body == came[1].body
    assert came[0].headers["Idempotency-Key"] == came[1].headers["Idempotency-Key"]


def test_a_failed_message_waits_in_a_retry_queue(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(0.2, 0.4))
    def charge(order: Order) -> None:
        runs.append(order.id)
        if len(runs) < 3:
            raise ConnectionError("the bank is away")

    async def main():
        async with shop:
            await shop.publish(Order(id="1"))
            await until(lambda: len(runs) == 3)

    asyncio.run(main())
    assert runs == ["1"] * 3


def test_a_copy_keeps_the_senders_headers_and_goes_nowhere_else(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(0.2, 0.4))
    def charge(order: Order, tenant: Annotated[str, Header("x-tenant")]) -> None:
        runs.append(tenant)
        if len(runs) < 2:
            raise ConnectionError("the bank is away")

    async def main():
        async with shop:
            other = await shop.broker.declare_queue(RabbitQueue(shop.paid, queue_type=QueueType.QUORUM))
            headers = {"x-tenant": "t1", "CC": [shop.paid]}
            await shop.broker.publish(Order(id="1"), shop.orders, persist=True, headers=headers)
            await until(lambda: len(runs) == 2)
            assert len(await shop.take(shop.paid, 1)) == 1  # of the sender, and of no copy
            assert await other.get(no_ack=True, fail=False) is None

    asyncio.run(main())
    assert runs == ["t1", "t1"]


def test_a_busy_message_waits_in_a_retry_queue(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> None:
        runs.append(order.id)

    async def main():
        other = await once.acquire_async("1", name="charge", lease=600)
        async with shop:
            await shop.publish(Order(id="1"))
            waiting = f"{shop.orders}.onceward-retry.900s"

            def there():
                try:
                    return shop.server.ready(waiting)
                except ChannelNotFoundEntity:
                    return 0

            await until(lambda: asyncio.to_thread(there))
            await other.release_async()

    asyncio.run(main())
    assert runs == []


def test_what_cannot_be_handled_goes_to_the_dead_letters(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", fingerprint="order.cents", max_attempts=1, backoff=(0.1, 0.1))
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if order.id == "poison":
            raise ValueError("no such customer")

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), b"no JSON at all")
            await until(lambda: runs == ["1"])
            letters = await shop.take(shop.dead, 1)
            await shop.publish(Order(id="1", cents=200), Order(id="poison"))
            return [*letters, *await shop.take(shop.dead, 2)]

    letters = asyncio.run(main())
    told = {one.headers["onceward-status"]: one for one in letters}
    assert told.keys() == {"malformed", "mismatch", "parked"}
    assert told["malformed"].body == b"no JSON at all"
    assert told["malformed"].content_type == "application/json"
    assert "no such customer" in told["parked"].headers["onceward-reason"]
    assert told["parked"].headers["onceward-from"] == shop.orders
    assert told["parked"].headers["onceward-receives"] == "2"


def test_an_ordered_queue_is_held_back_by_a_failed_message(shop, once):
    runs = []

    @shop.subscriber(QueueType.CLASSIC, {"x-single-active-consumer": True}, channel=Channel(prefetch_count=1))
    @exactly(once, key="order.id", name="charge", order=True, backoff=(0.1, 0.1))
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if len(runs) < 3:
            raise ConnectionError("the bank is away")

    async def main():
        async with shop:
            await shop.publish(*(Order(id=f"{n}") for n in range(5)))
            await until(lambda: len(runs) == 7)

    asyncio.run(main())
    assert runs == ["0", "0", "0", "1", "2", "3", "4"]


def test_queues_of_retries_and_letters_are_declared_at_the_start(shop, once):
    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(1.0, 60.0))
    async def charge(order: Order) -> None: ...

    async def main():
        async with shop:
            for name in (*(f"{shop.orders}.onceward-retry.{length}s" for length in (1, 4, 16, 60)), shop.dead):
                await shop.broker.declare_queue(RabbitQueue(name, declare=False))  # raises if it is not there

    asyncio.run(main())


def test_a_queue_of_letters_with_other_arguments_is_told_at_the_start(shop, once, rabbitmq):
    rabbitmq.queue(shop.dead, "classic")

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> None: ...

    async def main():
        with pytest.raises(SetupError, match=r"onceward-dead cannot be declared"):
            await shop.broker.start()
        await shop.broker.stop()

    asyncio.run(main())


def test_text_that_is_not_utf8_reaches_the_dead_letters(shop, once):
    class Latin(str):
        __slots__ = ()

        def encode(self, *_):
            return b"caf\xe9"

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", max_attempts=2, backoff=(0.1, 0.1))
    async def charge(order: Order) -> None:
        raise ConnectionError("no bank")

    async def main():
        async with shop:
            headers = {"name": Latin("cafe"), "onceward-key": "charge:victim"}
            await shop.broker.publish(Order(id="1"), shop.orders, persist=True, headers=headers)
            await shop.broker.publish(b"torn", shop.orders, persist=True, headers=headers)
            return await shop.take(shop.dead, 2)

    letters = asyncio.run(main())
    assert [letter.headers["name"] for letter in letters] == [bytearray(b"caf\xe9")] * 2
    assert sorted(letter.headers.get("onceward-key", "none") for letter in letters) == ['charge:"1"', "none"]
