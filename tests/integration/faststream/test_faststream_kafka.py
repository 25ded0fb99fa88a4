"""FastStream over Kafka: each outcome becomes what Kafka needs."""

import asyncio
import json

import pytest
from faststream.kafka import KafkaBroker
from stations import NACK, Order, Station, charging, is_poison, numbered, until

from onceward import Once
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_before


class Shop(Station):
    def __init__(self, server):
        super().__init__(KafkaBroker(server.servers, acks="all", logger=None))
        self.server, self.retry = server, f"{self.orders}.onceward-retry"

    def subscriber(self, *, topics=None, **options):
        given = {"group_id": self.name, "auto_offset_reset": "earliest", "ack_policy": NACK} | options
        return self.broker.subscriber(*(topics or (self.orders, self.retry)), **given)

    async def publish(self, *orders, **options):
        for order in orders:
            headers = {"content-type": "application/json"} if isinstance(order, bytes) else {}
            await self.broker.publish(order, self.orders, headers=headers, **options)

    async def read(self, topic, count):
        """Return the records of a topic when there are so many."""
        return await until(lambda: self._read(topic, count))

    async def _read(self, topic, count):
        try:
            found = await asyncio.to_thread(self.server.read, topic)
        except Exception:  # it is not there yet
            return None
        return found if len(found) >= count else None

    async def committed(self):
        """Return how far the orders are committed."""
        return sum((await asyncio.to_thread(self.server.committed, self.name, self.orders)).values())

    async def has_committed(self, count):
        return await self.committed() == count


def told(record):
    return {name: value.decode() for name, value in record.headers}


@pytest.fixture
def shop(kafka):
    made = Shop(kafka)
    kafka.make(made.orders, made.retry, partitions=2)
    return made


def is_refused(runs):
    return runs[-1] == "1" and runs.count("1") < 3


async def test_a_failed_record_goes_to_the_retry_topic(shop, once):
    runs = charging(shop, once, is_refused, backoff=(0.5, 0.5))
    async with shop:
        await shop.publish(Order(id="1"), Order(id="2"), partition=0)
        await until(lambda: len(runs) == 4)
        await until(shop.committed)
        waited = await shop.read(shop.retry, 2)
    assert sorted(runs) == ["1", "1", "1", "2"]
    assert sorted(told(record)["onceward-receives"] for record in waited) == ["1", "2"]


async def test_an_ordered_partition_waits_and_the_others_go_on(shop, once):
    runs = charging(shop, once, is_refused, {"topics": [shop.orders]}, order=True, backoff=(0.5, 0.5))
    async with shop:
        await shop.publish(Order(id="1"), Order(id="2"), partition=0)
        await until(lambda: runs)
        await shop.publish(Order(id="3"), partition=1)
        await until(lambda: len(runs) == 5)
        await until(lambda: shop.has_committed(3))
    assert [run for run in runs if run != "3"] == ["1", "1", "1", "2"]


async def test_records_wait_in_their_partition_while_the_ledger_is_away(shop, caplog):
    gone = [True]
    once = Once(Faults(MemoryStore(), lambda _: fail_before() if gone else None))
    runs = charging(shop, once, backoff=(0.2, 0.5))
    async with shop:
        await shop.publish(Order(id="1"), Order(id="2"), partition=0)
        await until(lambda: "waits for the ledger" in caplog.text)
        gone.clear()
        await until(lambda: runs == ["1", "2"])
        told = await asyncio.to_thread(shop.server.read, shop.retry)
    assert told == []


@pytest.mark.parametrize("order", [False, True])
async def test_a_batch_is_claimed_together_and_settled_one_by_one(shop, once, order):
    queue = {"batch": True, "max_records": 50} | ({"topics": [shop.orders]} if order else {})
    runs = charging(shop, once, is_poison, queue, max_attempts=2, backoff=(0.1, 0.1), order=order)
    async with shop:
        await shop.publish(Order(id="poison"), b"no JSON at all", *numbered(10), Order(id="3"))
        letters = await shop.read(shop.dead, 2)
        await until(lambda: shop.has_committed(13))
    assert sorted(runs) == sorted([*(f"{n}" for n in range(10)), "poison", "poison"])
    assert {told(record)["onceward-status"] for record in letters} == {"malformed", "parked"}
    assert {json.loads(record.value)["id"] for record in letters if record.value[:1] == b"{"} == {"poison"}
