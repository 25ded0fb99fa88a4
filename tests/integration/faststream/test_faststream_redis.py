"""FastStream over Redis Streams: each outcome becomes what Redis Streams need."""

import uuid

import pytest
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis
from stations import NACK, Order, charging, until

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
        self.client = Redis(port=self.port)
        await self.broker.start()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()
        await self.client.aclose()

    async def publish(self, *orders):
        for order in orders:
            headers = {"content-type": "application/json"} if isinstance(order, bytes) else {}
            await self.broker.publish(order, stream=self.orders, headers=headers)

    async def settled(self):
        """Return whether the group has read all, and nothing is pending."""
        (group,) = await self.client.xinfo_groups(self.orders)
        return group["pending"] == 0 and group["lag"] == 0

    async def letters(self, count):
        """Return the headers and bodies of this many dead letters."""

        async def came():
            entries = await self.client.xrange(self.dead)
            return entries if len(entries) >= count else None

        parse = self.broker.config.broker_config.message_format.parse
        return [parse(fields[b"__data__"]) for _, fields in await until(came)]


@pytest.fixture
def shop(redis):
    return Shop(redis)


STRANGE = [
    {b"\xff": b"\xfe"},
    {b"id": b"5"},
    {b"__data__": b"torn"},
    {b"__data__": b'{"data": 5, "headers": 7}'},
    {b"__data__": b'{"data": "x", "headers": 7}'},
    {b"__data__": b'{"data": "{\\"data\\": \\"x\\", \\"headers\\": 7}", "headers": 7}'},
]


@pytest.mark.parametrize("batch", [False, True])
async def test_entries_of_other_senders_hold_up_nothing(shop, once, batch):
    runs = charging(shop, once, queue={"batch": batch}, max_attempts=2, backoff=(0.1, 0.1))
    async with shop:
        for fields in STRANGE:
            await shop.client.xadd(shop.orders, fields)
        await shop.publish(Order(id="1"))
        await until(lambda: runs)
        await until(shop.settled)
        letters = await shop.letters(5)
    assert sorted(runs) == ["1", "5"]
    assert {headers["onceward-status"] for _, headers in letters} == {"malformed"}


async def test_a_message_whose_dead_letter_is_not_taken_comes_again(shop, once, caplog):
    charging(shop, once, backoff=(0.1, 0.1))
    async with shop:
        await shop.client.set(shop.dead, "no stream")
        await shop.publish(b"no JSON at all")
        await until(lambda: "do not take it" in caplog.text)
        await shop.client.delete(shop.dead)
        ((_, headers),) = await shop.letters(1)
    assert headers["onceward-status"] == "malformed"


async def test_a_reply_is_readable_in_any_language(shop, once):
    @shop.subscriber()
    @shop.broker.publisher(stream=shop.paid)
    @exactly(once, key="order.id", name="größe")
    async def charge(order: Order) -> str:
        return order.id

    async with shop:
        await shop.publish(Order(id="Straße"))
        ((_, paid),) = await until(lambda: shop.client.xrange(shop.paid))
        reply, headers = shop.broker.config.broker_config.message_format.parse(paid[b"__data__"])
    assert (reply.decode(), headers["onceward-parent"].partition(":")[0]) == ("Straße", "größe")
