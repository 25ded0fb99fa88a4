"""FastStream over Redis Streams: each outcome becomes what Redis Streams need."""

import asyncio
import json
import uuid

import pytest
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis
from stations import NACK, Order, charging, is_poison, numbered, until

from onceward.faststream import exactly


class Shop:
    """A stream of its own on the run's server, and a broker of FastStream."""

    def __init__(self, server):
        self.name = f"s{uuid.uuid4().hex[:8]}"
        self.broker = RedisBroker(server.url, logger=None)
        self.port = server.port
        self.orders, self.paid = f"{self.name}.orders", f"{self.name}.paid"
        self.dead = f"{self.orders}.onceward-dead"

    def subscriber(self, stream=None, idle=100, **options):
        """Return the decorator of two subscribers: one reads what is new, one claims what is pending."""
        given = {"group": "shop", "consumer": "one", "polling_interval": 50} | options
        reads = self.broker.subscriber(stream=StreamSub(stream or self.orders, **given), ack_policy=NACK)
        claims = StreamSub(stream or self.orders, min_idle_time=idle, **given)
        return lambda handler: reads(self.broker.subscriber(stream=claims, ack_policy=NACK)(handler))

    async def __aenter__(self):
        self.client = Redis(port=self.port, decode_responses=True)
        await self.broker.start()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()
        await self.client.aclose()

    async def publish(self, *orders):
        for order in orders:
            if isinstance(order, bytes):
                headers = {"content-type": "application/json"}
                await self.broker.publish(order, stream=self.orders, headers=headers)
            else:
                await self.broker.publish(order, stream=self.orders)

    async def settled(self):
        """Return whether the group has read all, and nothing is pending."""
        (group,) = await self.client.xinfo_groups(self.orders)
        return group["pending"] == 0 and group["lag"] == 0

    async def letters(self, count):
        """Return the headers and bodies of this many dead letters."""

        async def came():
            return await self.client.xlen(self.dead) >= count

        await until(came)
        config = self.broker.config.broker_config
        raw = Redis(port=self.port)
        entries = await raw.xrange(self.dead)
        await raw.aclose()
        return [config.message_format.parse(fields[b"__data__"]) for _, fields in entries]


@pytest.fixture
def shop(redis):
    return Shop(redis)


def test_a_batch_is_claimed_together_and_settled_one_by_one(shop, once):
    runs = charging(shop, once, is_poison, {"batch": True, "max_records": 50}, max_attempts=2)

    async def main():
        async with shop:
            await shop.publish(*numbered(20), b"no JSON at all", Order(id="poison"), Order(id="3"))
            await until(shop.settled)  # until then a busy machine may claim a message whose letter is being sent
            return await shop.letters(2)

    letters = asyncio.run(main())
    assert sorted(runs) == sorted([*(f"{n}" for n in range(20)), "poison", "poison"])
    assert {headers["onceward-status"] for _, headers in letters} == {"malformed", "parked"}


STRANGE = [
    {b"\xff": b"\xfe"},
    {b"id": b"5"},
    {b"__data__": b"torn"},
    {b"__data__": b'{"data": 5, "headers": 7}'},
    {b"__data__": b'{"data": "x", "headers": 7}'},
    {b"__data__": b'{"data": "{\\"data\\": \\"x\\", \\"headers\\": 7}", "headers": 7}'},
]


@pytest.mark.parametrize("batch", [False, True])
def test_entries_of_other_senders_hold_up_nothing(shop, once, batch):
    runs = charging(shop, once, queue={"batch": batch}, max_attempts=2, backoff=(0.1, 0.1))

    async def main():
        async with shop:
            for fields in STRANGE:
                await shop.client.xadd(shop.orders, fields)
            await shop.publish(Order(id="1"))
            await until(lambda: runs)
            await until(shop.settled)
            return await shop.letters(5)

    letters = asyncio.run(main())
    assert sorted(runs) == ["1", "5"]
    assert {headers["onceward-status"] for _, headers in letters} == {"malformed"}


def test_letters_and_replies_are_readable_in_any_language(shop, once):
    @shop.subscriber()
    @shop.broker.publisher(stream=shop.paid)
    @exactly(once, key="order.id", name="größe", max_attempts=2, backoff=(0.1, 0.1))
    async def charge(order: Order) -> str:
        if order.id == "Straße":
            raise ConnectionError("nicht möglich")
        return order.id

    async def main():
        async with shop:
            await shop.publish(Order(id="Straße"), Order(id="Größe"))
            letters = await shop.letters(1)
            await until(shop.settled)
            raw = Redis(port=shop.port)
            ((_, paid),) = await raw.xrange(shop.paid)
            await raw.aclose()
            return letters, shop.broker.config.broker_config.message_format.parse(paid[b"__data__"])

    ((body, headers),), (reply, told) = asyncio.run(main())
    assert json.loads(body)["id"] == "Straße"
    assert headers["onceward-key"].startswith("größe:")
    assert "nicht möglich" in headers["onceward-reason"]
    assert (reply, told["onceward-parent"].partition(":")[0]) == ("Größe".encode(), "größe")
