"""FastStream over Kafka: each outcome becomes what Kafka needs."""

import asyncio
import json
import uuid

import pytest
from aiokafka import AIOKafkaProducer
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from stations import Order, Receipt, until

from onceward import Once
from onceward.consumers.retry_topics import configs_of
from onceward.faststream import exactly
from servers.redis import Redis

NACK = AckPolicy.NACK_ON_ERROR


class Shop:
    """A topic of its own on the run's broker, and a broker of FastStream."""

    def __init__(self, server):
        self.name = f"s{uuid.uuid4().hex[:8]}"
        self.server = server
        self.broker = KafkaBroker(server.servers, acks="all", logger=None)
        self.orders, self.paid = f"{self.name}.orders", f"{self.name}.paid"
        self.retry, self.dead = f"{self.orders}.onceward-retry", f"{self.orders}.onceward-dead"

    def subscriber(self, *topics, **options):
        given = {"group_id": self.name, "auto_offset_reset": "earliest", "ack_policy": NACK} | options
        return self.broker.subscriber(*(topics or (self.orders, self.retry)), **given)

    async def __aenter__(self):
        await self.broker.start()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()

    async def publish(self, *orders, **options):
        for order in orders:
            headers = {"content-type": "application/json"} if isinstance(order, bytes) else {}
            await self.broker.publish(order, self.orders, headers=headers, **options)

    async def read(self, topic, count):
        """Return the records of a topic when there are so many."""
        return await until(lambda: self._read(topic, count))

    async def _read(self, topic, count):
        try:
            found = await self.server._read(topic)
        except Exception:  # it is not there yet
            return None
        return found if len(found) >= count else None

    async def committed(self):
        """Return how far the orders are committed."""
        return sum((await self.server._committed(self.name, self.orders)).values())


def told(record):
    return {name: value.decode() for name, value in record.headers}


@pytest.fixture
def shop(kafka):
    made = Shop(kafka)
    kafka.make(made.orders, made.retry, made.paid, partitions=2)
    return made


@pytest.fixture
def once(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/ledger.db", lease=30)
    yield made
    made.close()


def test_a_duplicate_gets_the_recorded_reply_under_the_same_key(shop, once):
    runs = []

    @shop.subscriber()
    @shop.broker.publisher(shop.paid)
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> Receipt:
        runs.append(order.id)
        return Receipt(order=order.id, run=len(runs))

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), Order(id="1"))
            return await shop.read(shop.paid, 2)

    came = asyncio.run(main())
    assert runs == ["1"]
    assert came[0].value == came[1].value
    assert told(came[0])["Idempotency-Key"] == told(came[1])["Idempotency-Key"]


def test_a_failed_record_goes_to_the_retry_topic(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(0.5, 0.5))
    def charge(order: Order) -> None:
        runs.append(order.id)
        if runs.count("1") < 3 and order.id == "1":
            raise ConnectionError("the bank is away")

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), Order(id="2"), partition=0)
            await until(lambda: len(runs) == 4)
            await until(shop.committed)
            return await shop.read(shop.retry, 2)

    waited = asyncio.run(main())
    assert sorted(runs) == ["1", "1", "1", "2"]
    assert sorted(told(record)["onceward-receives"] for record in waited) == ["1", "2"]


def test_an_ordered_partition_waits_and_the_others_go_on(shop, once):
    runs = []

    @shop.subscriber(shop.orders)
    @exactly(once, key="order.id", name="charge", order=True, backoff=(0.5, 0.5))
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if runs.count("1") < 3 and order.id == "1":
            raise ConnectionError("the bank is away")

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), Order(id="2"), partition=0)
            await until(lambda: runs)
            await shop.publish(Order(id="3"), partition=1)
            await until(lambda: len(runs) == 5)
            await until(all_committed)

    async def all_committed():
        return await shop.committed() == 3

    asyncio.run(main())
    assert [run for run in runs if run != "3"] == ["1", "1", "1", "2"]


def test_a_busy_record_goes_to_the_retry_topic_and_its_partition_goes_on(shop, once):
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> None:
        runs.append(order.id)

    async def main():
        other = await once.acquire_async("1", name="charge", lease=600)
        async with shop:
            await shop.publish(Order(id="1"), Order(id="2"), partition=0)
            waits = await shop.read(shop.retry, 1)
            await until(lambda: runs)
            await other.release_async()
            return waits

    waits = asyncio.run(main())
    assert runs == ["2"]
    assert len(waits) == 1
    assert float(told(waits[0])["onceward-delay"]) > 60


def test_records_wait_in_their_partition_while_the_ledger_is_away(shop):
    ledger, runs = Redis(appendonly="yes", appendfsync="always"), []
    once = Once(ledger.url)

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", backoff=(0.2, 0.5))
    async def charge(order: Order) -> None:
        runs.append(order.id)

    async def main():
        async with shop:
            await shop.publish(Order(id="1"), partition=0)
            await until(lambda: runs)
            ledger.kill()
            await shop.publish(Order(id="2"), Order(id="3"), partition=0)
            await asyncio.sleep(2)  # some tries
            before = list(runs)
            ledger.start()
            await until(lambda: len(runs) == 3)
            return before, await shop.server._read(shop.retry)

    try:
        before, moved = asyncio.run(main())
    finally:
        once.close()
        ledger.stop()
    assert before == ["1"]
    assert runs == ["1", "2", "3"]
    assert moved == []


def test_what_cannot_be_handled_goes_to_the_dead_letters(shop, once):
    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", fingerprint="order.cents", max_attempts=1, backoff=(0.1, 0.1))
    async def charge(order: Order) -> None:
        if order.id == "poison":
            raise ValueError("no such customer")

    async def main():
        async with shop:
            await shop.publish(
                Order(id="1"), b"no JSON at all", Order(id="1", cents=200), Order(id="poison"), partition=0
            )
            return await shop.read(shop.dead, 3)

    letters = {told(record)["onceward-status"]: record for record in asyncio.run(main())}
    assert letters.keys() == {"malformed", "mismatch", "parked"}
    assert letters["malformed"].value == b"no JSON at all"
    assert "no such customer" in told(letters["parked"])["onceward-reason"]
    assert told(letters["parked"])["onceward-from"].startswith(f"{shop.orders}/0/3/")
    assert told(letters["parked"])["onceward-receives"] == "2"


@pytest.mark.parametrize("order", [False, True])
def test_a_batch_is_claimed_together_and_settled_one_by_one(shop, once, order):
    runs = []

    @shop.subscriber(*([shop.orders] if order else []), batch=True, max_records=50)
    @exactly(once, key="order.id", name="charge", max_attempts=2, backoff=(0.1, 0.1), order=order)
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if order.id == "poison":
            raise ValueError("no such customer")

    async def main():
        async with shop:
            await shop.publish(
                Order(id="poison"), b"no JSON at all", *(Order(id=f"{n}") for n in range(10)), Order(id="3")
            )
            letters = await shop.read(shop.dead, 2)
            await until(all_committed)
            return letters

    async def all_committed():
        return await shop.committed() == 13

    letters = asyncio.run(main())
    assert sorted(runs) == sorted([*(f"{n}" for n in range(10)), "poison", "poison"])
    assert {told(record)["onceward-status"] for record in letters} == {"malformed", "parked"}
    assert {json.loads(record.value)["id"] for record in letters if record.value[:1] == b"{"} == {"poison"}


def test_records_with_strange_headers_are_handled_and_copied_whole(shop, once):
    strange = [
        ("bytes", b"\xff\x00"),
        ("nothing", None),
        ("twice", b"1"),
        ("twice", b"2"),
        ("onceward-group", b"other"),
    ]
    runs = []

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge", max_attempts=2, backoff=(0.1, 0.1))
    async def charge(order: Order) -> None:
        runs.append(order.id)
        raise ConnectionError("no bank")

    async def main():
        producer = AIOKafkaProducer(bootstrap_servers=shop.server.servers)
        await producer.start()
        for value in (b'{"id": "1"}', b"torn"):
            told = [*strange, ("onceward-key", b"charge:victim")]
            await producer.send_and_wait(shop.orders, value, b"k", partition=1, headers=told)
        await producer.stop()
        async with shop:
            return await shop.read(shop.retry, 1), await shop.read(shop.dead, 2)

    retries, letters = asyncio.run(main())
    assert runs == ["1", "1"]
    for copy in (*retries, *letters):
        assert list(copy.headers)[:4] == strange[:4]
        assert (copy.key, copy.partition) == (b"k", 1)
    found = sorted(
        (dict(letter.headers)["onceward-status"], "onceward-key" in dict(letter.headers)) for letter in letters
    )
    assert found == [(b"malformed", False), (b"parked", True)]


def test_topics_beside_the_orders_keep_what_waits_in_them(kafka, once):
    shop = Shop(kafka)
    kafka.make(shop.orders, partitions=2)

    @shop.subscriber()
    @exactly(once, key="order.id", name="charge")
    async def charge(order: Order) -> None: ...

    async def main():
        async with shop:
            admin = shop.broker.config.broker_config.admin.client
            topics = {name: await configs_of(admin, name) for name in (shop.retry, shop.dead)}
            return topics, await admin.describe_topics([shop.retry, shop.dead])

    topics, described = asyncio.run(main())
    assert {topics[name]["retention.ms"] for name in topics} == {"-1"}
    assert topics[shop.retry]["message.timestamp.type"] == "LogAppendTime"
    assert [len(topic["partitions"]) for topic in described] == [2, 2]
