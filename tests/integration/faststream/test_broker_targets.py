"""Messages of the outbox to JetStream and Redis Streams, on real servers, and what FastStream reads of them."""

import asyncio
import json
import uuid
from functools import partial

import nats as client
import pytest
from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel
from stations import NACK, until

import onceward.nats
import onceward.redis_streams
from onceward import Claim
from onceward.faststream import exactly
from onceward.outbox import MessageNotSent, MessageRefused, OutboxMessage, sender
from onceward.outbox.targets import open_target
from servers.nats import Nats
from servers.redis import Redis
from tables import each


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
