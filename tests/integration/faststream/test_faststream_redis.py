"""FastStream over Redis Streams and Kafka: each outcome becomes what they need; and messages of the outbox to streams."""

import asyncio
import json
import uuid
from functools import partial

import nats as client
import pytest
from faststream.kafka import KafkaBroker
from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel
from redis.asyncio import Redis as Client
from test_faststream_nats import NACK, Order, Station, charging, is_poison, numbered, until

import onceward.nats
import onceward.redis_streams
from faults.injected import Faults, fail_before
from onceward import Claim, Once
from onceward.faststream import exactly
from onceward.outbox import MessageNotSent, MessageRefused, OutboxMessage, sender
from onceward.outbox.targets import open_target
from onceward.stores.memory import MemoryStore
from servers.nats import Nats
from servers.redis import Redis
from tables import each


class Shop(Station):
    def __init__(self, server):
        super().__init__(RedisBroker(server.url, logger=None))
        self.port = server.port

    def subscriber(self, stream=None, idle=100, **options):
        """Return the decorator of two subscribers: one reads what is new, one claims what is pending."""
        given = {"group": "shop", "consumer": "one", "polling_interval": 50} | options
        reads = self.broker.subscriber(stream=StreamSub(stream or self.orders, **given), ack_policy=NACK)
        claims = StreamSub(stream or self.orders, min_idle_time=idle, **given)
        return lambda handler: reads(self.broker.subscriber(stream=claims, ack_policy=NACK)(handler))

    async def __aenter__(self):
        self.client = Client(port=self.port)
        return await super().__aenter__()

    async def __aexit__(self, *_):
        await super().__aexit__()
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
        (_, paid), *_ = await until(lambda: shop.client.xrange(shop.paid))  # a slow machine claims it again
        reply, headers = shop.broker.config.broker_config.message_format.parse(paid[b"__data__"])
    assert (reply.decode(), headers["onceward-parent"].partition(":")[0]) == ("Straße", "größe")


class Parcel(BaseModel):
    order: str


@pytest.fixture
def stream(nats):
    """The name of a stream with one subject, and its target's address."""
    name = f"s{uuid.uuid4().hex[:8]}"

    async def make(jetstream):
        await jetstream.add_stream(name=name, subjects=[f"{name}.parcels"])

    ask(nats, make)
    return name, f"{nats.url}/{name}.parcels"


def ask(server, work):
    async def connected():
        connection = await client.connect(server.url)
        try:
            return await work(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(connected())


def message(number=1, body='{"order":"1"}', **more):
    return OutboxMessage(f"{number:036}", body, **more)


def test_jetstream_stores_a_repeated_message_once(nats, stream, once):
    name, address = stream

    @once(key="order", name=name)
    def place(order: str, claim: Claim) -> None:
        claim.send(address, {"order": order}, headers={"tenant": "eu"})

    place("1")
    assert sender.SENDER.drain(20) == 0
    (key,) = {onceward.nats.send(once, address, {"order": "2"}, key="2", name=f"{name}-send") for _ in range(2)}
    target = open_target(address)
    assert target.send([message(), message(), message(2)]) == [None] * 3

    async def stored(jetstream):
        info = await jetstream.stream_info(name)
        return [await jetstream.get_msg(name, number) for number in range(1, info.state.messages + 1)]

    found = ask(nats, stored)
    assert [json.loads(one.data)["order"] for one in found] == ["1", "2", "1", "1"]
    assert found[0].headers["tenant"] == "eu"
    assert found[0].headers["onceward-parent"] == f'{name}:"1"'
    assert found[1].headers["Idempotency-Key"] == found[1].headers["Nats-Msg-Id"] == key
    target.close()
    assert target.send([message(3)]) == [None]


def test_jetstream_refuses_what_is_too_large_and_waits_for_a_stream(nats, stream):
    name, address = stream
    assert isinstance(open_target(address).send([message(body="x" * 2_000_000)])[0], MessageRefused)
    nearly = message(body="x" * (2**20 - 150), headers={"trace": "t" * 200})  # without its headers it would fit
    answers = open_target(address).send([nearly, message()])
    assert [type(answer) for answer in answers] == [MessageRefused, type(None)]
    missing = open_target(f"{nats.url}/{name}.nobody").send([message()])[0]
    assert isinstance(missing, MessageNotSent)
    assert "no stream takes this subject" in str(missing)


@pytest.mark.parametrize("make", [Nats, lambda: Redis(appendonly="yes", appendfsync="always")], ids=["nats", "redis"])
def test_a_killed_server_gets_the_message_later(make):
    server = make()
    try:
        if isinstance(server, Nats):
            ask(server, lambda jetstream: jetstream.add_stream(name="s", subjects=["parcels"]))
            target = open_target(f"{server.url}/parcels")
        else:
            target = open_target(f"redis-stream://127.0.0.1:{server.port}/0/parcels")
        assert target.send([message()]) == [None]
        server.kill()
        assert isinstance(target.send([message(2)])[0], MessageNotSent)
        server.start()
        assert target.send([message(2)]) == [None]
    finally:
        server.stop()


async def test_redis_streams_take_messages_that_faststream_reads(redis, once):
    name = f"s{uuid.uuid4().hex[:8]}"
    address = f"redis-stream://127.0.0.1:{redis.port}/0/{name}"
    broker, runs = RedisBroker(redis.url, logger=None), []
    group = {"group": "ship", "consumer": "one", "polling_interval": 50}

    @broker.subscriber(stream=StreamSub(name, **group), ack_policy=NACK)
    @broker.subscriber(stream=StreamSub(name, min_idle_time=1000, **group), ack_policy=NACK)
    @exactly(once, key="parcel.order", name=f"{name}.ship")
    async def ship(parcel: Parcel, claim: Claim) -> None:
        runs.append((parcel.order, claim.record.origin))

    await broker.start()
    send = partial(onceward.redis_streams.send_async, once, address, {"order": "1"}, key="1", name=f"{name}-send")
    assert await send() == await send()
    await until(lambda: runs)
    await broker.stop()
    assert [order for order, _ in runs] == ["1"]
    assert f"{name}-send:" in runs[0][1]
    assert redis.ask("XLEN", name) == "1"


@each(
    "address",
    [
        "nats://127.0.0.1:4222",
        "nats://user:secret@127.0.0.1:4222/orders",
        "nats://127.0.0.1:4222/orders.*",
        "redis-stream://127.0.0.1:6379/orders",
        "redis-stream://:secret@127.0.0.1/0/orders",
    ],
)
def test_an_address_that_is_not_valid_is_refused(address):
    with pytest.raises(ValueError, match="write "):
        open_target(address)


@each("address", ["nats://127.0.0.1:4222/orders", "redis-stream://127.0.0.1/0/orders"])
def test_what_a_target_can_never_take_is_refused_before_it_is_sent(address):
    for more in ({"delay": 1.0}, {"group": "a"}):
        with pytest.raises(ValueError, match="leave it out"):
            open_target(address).check(message(**more))
        assert isinstance(open_target(address).send([message(**more)])[0], MessageRefused)


class KafkaStation(Station):
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
def kafka_shop(kafka):
    made = KafkaStation(kafka)
    kafka.make(made.orders, made.retry, partitions=2)
    return made


def is_refused(runs):
    return runs[-1] == "1" and runs.count("1") < 3


async def test_a_failed_record_goes_to_the_retry_topic(kafka_shop, once):
    runs = charging(kafka_shop, once, is_refused, backoff=(0.5, 0.5))
    async with kafka_shop:
        await kafka_shop.publish(Order(id="1"), Order(id="2"), partition=0)
        await until(lambda: len(runs) == 4)
        await until(kafka_shop.committed)
        waited = await kafka_shop.read(kafka_shop.retry, 2)
    assert sorted(runs) == ["1", "1", "1", "2"]
    assert sorted(told(record)["onceward-receives"] for record in waited) == ["1", "2"]


async def test_an_ordered_partition_waits_and_the_others_go_on(kafka_shop, once):
    runs = charging(kafka_shop, once, is_refused, {"topics": [kafka_shop.orders]}, order=True, backoff=(0.5, 0.5))
    async with kafka_shop:
        await kafka_shop.publish(Order(id="1"), Order(id="2"), partition=0)
        await until(lambda: runs)
        await kafka_shop.publish(Order(id="3"), partition=1)
        await until(lambda: len(runs) == 5)
        await until(lambda: kafka_shop.has_committed(3))
    assert [run for run in runs if run != "3"] == ["1", "1", "1", "2"]


async def test_records_wait_in_their_partition_while_the_ledger_is_away(kafka_shop, caplog):
    gone = [True]
    once = Once(Faults(MemoryStore(), lambda _: fail_before() if gone else None))
    runs = charging(kafka_shop, once, backoff=(0.2, 0.5))
    async with kafka_shop:
        await kafka_shop.publish(Order(id="1"), Order(id="2"), partition=0)
        await until(lambda: "waits for the ledger" in caplog.text)
        gone.clear()
        await until(lambda: runs == ["1", "2"])
        told = await asyncio.to_thread(kafka_shop.server.read, kafka_shop.retry)
    assert told == []


@pytest.mark.parametrize("order", [False, True])
async def test_a_batch_is_claimed_together_and_settled_one_by_one(kafka_shop, once, order):
    queue = {"batch": True, "max_records": 50} | ({"topics": [kafka_shop.orders]} if order else {})
    runs = charging(kafka_shop, once, is_poison, queue, max_attempts=2, backoff=(0.1, 0.1), order=order)
    async with kafka_shop:
        await kafka_shop.publish(Order(id="poison"), b"no JSON at all", *numbered(10), Order(id="3"))
        letters = await kafka_shop.read(kafka_shop.dead, 2)
        await until(lambda: kafka_shop.has_committed(13))
    assert sorted(runs) == sorted([*(f"{n}" for n in range(10)), "poison", "poison"])
    assert {told(record)["onceward-status"] for record in letters} == {"malformed", "parked"}
    assert {json.loads(record.value)["id"] for record in letters if record.value[:1] == b"{"} == {"poison"}
