"""FastStream over NATS JetStream and RabbitMQ: each outcome becomes what they need."""

import asyncio
import json
import time
import uuid
from contextlib import suppress
from typing import Annotated

import nats as client
import pytest
from aio_pika.exceptions import ChannelNotFoundEntity
from faststream import AckPolicy, Header
from faststream.exceptions import SetupError
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.rabbit import QueueType, RabbitBroker, RabbitQueue
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError
from pydantic import BaseModel

from onceward.faststream import exactly

NACK = AckPolicy.NACK_ON_ERROR
PATIENCE = 120  # seconds that something may take on a slow machine


class Order(BaseModel):
    id: str
    cents: int = 100


class Receipt(BaseModel):
    order: str
    run: int


class Station:
    """A queue of its own on a server, and a broker of FastStream."""

    def __init__(self, broker):
        self.name, self.broker = f"s{uuid.uuid4().hex[:8]}", broker
        self.orders, self.paid = f"{self.name}.orders", f"{self.name}.paid"
        self.dead = f"{self.orders}.onceward-dead"

    async def __aenter__(self):
        await self.broker.start()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()


async def until(holds, patience=PATIENCE):
    """Wait until something holds; what it checks may be awaited."""
    limit = time.monotonic() + patience
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < limit, "it never came"
        await asyncio.sleep(0.05)


def charging(shop, once, refuses=lambda runs: False, queue=None, **options):
    """Subscribe a guarded handler, which raises if ``refuses`` says so of the ids that it ran for; return these."""
    runs = []

    @shop.subscriber(**(queue or {}))
    @exactly(once, key="order.id", name="charge", **options)
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if refuses(runs):
            raise ConnectionError("the bank is away")

    return runs


def is_poison(runs):
    return runs[-1] == "poison"


def handled(shop, *orders, end):
    """Publish these while the application runs; return what ``end`` gives when it holds."""

    async def main():
        async with shop:
            await shop.publish(*orders)
            return await until(end)

    return asyncio.run(main())


def numbered(count):
    return [Order(id=f"{number}") for number in range(count)]


class Shop(Station):
    def __init__(self, server):
        super().__init__(NatsBroker(server.url, logger=None))
        self.url, self.stream = server.url, JStream(self.name.upper(), subjects=[self.orders, self.paid])

    def subscriber(self, **options):
        # Of a message that is sent to a pull as it ends, a busy machine loses one of three: it comes again soon.
        given = {"durable": "orders", "pull_sub": PullSub(timeout=0.5), "config": ConsumerConfig(ack_wait=10)} | options
        return self.broker.subscriber(self.orders, stream=self.stream, ack_policy=NACK, **given)

    async def __aenter__(self):
        self.connection = await client.connect(self.url)
        self.jetstream = self.connection.jetstream()
        return await super().__aenter__()

    async def __aexit__(self, *_):
        await super().__aexit__()
        await self.connection.close()

    async def publish(self, *orders):
        for order in orders:
            body = order if isinstance(order, bytes) else order.model_dump_json().encode()
            await self.jetstream.publish(self.orders, body, headers={"content-type": "application/json"})

    async def info(self):
        return await self.jetstream.consumer_info(self.stream.name, "orders")

    async def settled(self):
        """Return whether JetStream holds nothing back for the orders' consumer."""
        info = await self.info()
        return info.num_pending == 0 and info.num_ack_pending == 0

    async def letters(self, count):
        """Return this many dead letters."""
        stream = self.dead.replace(".", "-")

        async def came():
            with suppress(NotFoundError):
                return (await self.jetstream.stream_info(stream)).state.messages >= count

        await until(came)
        return [await self.jetstream.get_msg(stream, number) for number in range(1, count + 1)]


@pytest.fixture
def shop(nats):
    return Shop(nats)


async def test_a_duplicate_gets_the_recorded_reply_and_each_publisher_has_a_key_of_its_own(shop, once):
    """The stream itself drops the second replies: they have the same Nats-Msg-Id. So one key for two publishers loses one."""
    runs = []

    @shop.subscriber()
    @shop.broker.publisher(shop.paid, stream=shop.stream)
    @shop.broker.publisher(f"{shop.name}.mails", stream=shop.stream)
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> Receipt:
        runs.append(order.id)
        return Receipt(order=order.id, run=len(runs))

    async with shop:
        await shop.publish(Order(id="1"), Order(id="1"), Order(id="2"))
        await until(shop.settled)
        count = (await shop.jetstream.stream_info(shop.stream.name)).state.messages
        told = [await shop.jetstream.get_msg(shop.stream.name, number) for number in range(1, count + 1)]
    came = [one for one in told if one.subject != shop.orders]
    assert sorted(runs) == ["1", "2"]
    assert sorted((one.subject, json.loads(one.data)["order"]) for one in came) == [
        (subject, order) for subject in (f"{shop.name}.mails", shop.paid) for order in ("1", "2")
    ]
    assert len({one.headers["Idempotency-Key"] for one in came}) == 4


async def test_what_cannot_be_handled_goes_to_the_dead_letters(shop, once, caplog):
    options = {"fingerprint": "order.cents", "max_attempts": 1, "backoff": (0.1, 0.1)}
    charging(shop, once, is_poison, **options)
    async with shop:
        await shop.publish(Order(id="1"), b'{"id": "2", "cents": "4111-x"}')
        await until(shop.settled)
        await shop.publish(Order(id="1", cents=200), Order(id="poison"))
        letters = await shop.letters(3)
        await until(shop.settled)
    told = {one.headers["onceward-status"]: one for one in letters}
    assert told.keys() == {"malformed", "mismatch", "parked"}
    assert told["malformed"].data == b'{"id": "2", "cents": "4111-x"}'
    assert "4111" not in caplog.text
    parked = {name: told["parked"].headers[f"onceward-{name}"] for name in ("key", "from", "receives")}
    assert parked == {"key": "charge:poison", "from": shop.orders, "receives": "2"}
    assert "the bank is away" in told["parked"].headers["onceward-reason"]


async def test_a_message_whose_result_is_not_published_comes_again_later(shop, once):
    runs = []

    @shop.subscriber()
    @shop.broker.publisher(f"nobody-{shop.name}", stream=JStream(f"NOBODY-{shop.name}", declare=False))
    @exactly(once, key="order.id", name="charge", backoff=(600, 600))
    def charge(order: Order) -> Receipt:
        runs.append(order.id)
        return Receipt(order=order.id, run=len(runs))

    async with shop:
        await shop.publish(Order(id="1"))
        await until(lambda: runs)
        await asyncio.sleep(1)  # a hot loop would be hundreds of deliveries
        told = (await shop.info()).delivered.consumer_seq
    assert told < 5
    assert runs == ["1"]


def test_an_ordered_consumer_is_held_back_by_a_failed_message(shop, once):
    queue = {"config": ConsumerConfig(max_ack_pending=1, ack_wait=10)}
    runs = charging(shop, once, lambda runs: len(runs) < 3, queue, order=True, backoff=(0.2, 0.2))
    handled(shop, *numbered(5), end=shop.settled)
    assert runs == ["0", "0", "0", "1", "2", "3", "4"]


async def test_a_stream_that_forgets_dead_letters_is_refused_at_start(shop, once):
    shop.stream = JStream(shop.name.upper(), subjects=[f"{shop.name}.>"], retention="interest")
    charging(shop, once)
    with pytest.raises(SetupError, match=r"loses messages.* no consumer waits"):
        try:
            await shop.broker.start()
        finally:
            await shop.broker.stop()


class RabbitStation(Station):
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
def rabbit(rabbitmq):
    return RabbitStation(rabbitmq)


async def test_a_copy_keeps_the_senders_headers_and_goes_nowhere_else(rabbit, once):
    runs = []

    @rabbit.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(0.2, 0.4))
    def charge(order: Order, tenant: Annotated[str, Header("x-tenant")]) -> None:
        runs.append(tenant)
        if len(runs) < 2:
            raise ConnectionError("the bank is away")

    async with rabbit:
        other = await rabbit.broker.declare_queue(RabbitQueue(rabbit.paid, queue_type=QueueType.QUORUM))
        headers = {"x-tenant": "t1", "CC": [rabbit.paid]}
        await rabbit.broker.publish(Order(id="1"), rabbit.orders, persist=True, headers=headers)
        await until(lambda: len(runs) == 2)
        assert len(await rabbit.take(rabbit.paid, 1)) == 1  # of the sender, and of no copy
        assert await other.get(no_ack=True, fail=False) is None
    assert runs == ["t1", "t1"]


def test_a_busy_message_waits_in_a_retry_queue(rabbit, once):
    runs, held = charging(rabbit, once), once.acquire("1", name="charge", lease=600)

    def there():
        try:
            return rabbit.server.ready(f"{rabbit.orders}.onceward-retry.900s")
        except ChannelNotFoundEntity:
            return 0

    handled(rabbit, Order(id="1"), end=lambda: asyncio.to_thread(there))
    held.release()
    assert runs == []


async def test_what_cannot_be_handled_goes_to_the_dead_letters_of_its_queue(rabbit, once):
    options = {"fingerprint": "order.cents", "max_attempts": 1, "backoff": (0.1, 0.1)}
    runs = charging(rabbit, once, is_poison, **options)
    async with rabbit:
        await rabbit.publish(Order(id="1"), b"no JSON at all")
        await until(lambda: runs == ["1"])
        letters = await rabbit.take(rabbit.dead, 1)
        await rabbit.publish(Order(id="1", cents=200), Order(id="poison"))
        got = [*letters, *await rabbit.take(rabbit.dead, 2)]
    told = {one.headers["onceward-status"]: one for one in got}
    assert told.keys() == {"malformed", "mismatch", "parked"}
    assert told["malformed"].body == b"no JSON at all"
    assert told["malformed"].content_type == "application/json"
    assert "the bank is away" in told["parked"].headers["onceward-reason"]
    assert told["parked"].headers["onceward-from"] == rabbit.orders
    assert told["parked"].headers["onceward-receives"] == "2"
