"""One consumer of `brokers.py`, as a process: it handles so many messages, and prints the seconds of each, and of CPU.

Run by brokers.py: python benchmarks/brokers_consumer.py STATION CASE BROKER DATABASE MESSAGES POSTMASTER
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from psycopg_pool import AsyncConnectionPool

from brokers_meter import Meter
from onceward import Claim, Completed, Once

STATION, CASE, BROKER, DATABASE = sys.argv[1:5]
INSERT = "INSERT INTO effects (id) VALUES (%s)"
SIDE_BY_SIDE = 10  # handlers
UNGUARDED = {"bare", "idemkit", "once-transaction"}  # by their adapter; the last one guards in its handler
TOGETHER = 50  # messages of a batch
Handler = Callable[..., Awaitable[None]]

logging.getLogger("onceward").setLevel(logging.ERROR)


async def main() -> None:
    async with AsyncConnectionPool(
        DATABASE, min_size=SIDE_BY_SIDE, max_size=SIDE_BY_SIDE, kwargs={"autocommit": True}
    ) as pool:
        meter, over = Meter(*map(int, sys.argv[5:])), asyncio.Event()
        once = Once(DATABASE.replace("postgres://", "postgresql://"), lease=60)

        def done() -> None:
            if meter.done():
                over.set()

        async def bare(order: dict) -> None:
            meter.begin()
            async with pool.connection() as connection:
                await connection.execute(INSERT, (order["id"],))
            done()

        async def guarded(order: dict) -> None:
            await bare(order)

        async def together(order: dict, claim: Claim) -> None:
            meter.begin()
            async with pool.connection() as connection, claim.transaction(connection):
                await connection.execute(INSERT, (order["id"],))
            done()

        async def whole(order: dict) -> None:
            meter.begin()
            try:
                async with pool.connection() as connection, once.transaction(order["id"], connection, name="whole"):
                    await connection.execute(INSERT, (order["id"],))
            except Completed:
                return
            done()

        handler = {
            "bare": bare,
            "guarded": guarded,
            "claim-transaction": together,
            "once-transaction": whole,
            "side-by-side": guarded,
            "batch": guarded,
            "idemkit": bare,
        }[CASE]
        if CASE == "idemkit":
            handler = await _idemkit(bare)
        stop = await STATIONS[STATION](once, handler)
        await over.wait()
        await stop()
        once.close()
        print(json.dumps(meter.told))


async def _idemkit(function: Handler) -> Handler:
    from idemkit import MethodConfig, PostgresBackend, idempotent
    from idemkit.backends.postgres import init_pg

    await init_pg(DATABASE)
    config = MethodConfig(key_fields=["order.id"], scope=lambda: STATION)
    call: Handler = idempotent(backend=PostgresBackend.from_url(DATABASE), config=config)(function)

    async def handle(order: dict) -> None:
        await call(order)

    return handle


# --- consumers ------------------------------------------------------------------------------------------------------


def _exactly(once: Once, handler: Handler) -> Handler:
    if CASE in UNGUARDED:
        return handler
    from onceward.faststream import exactly

    return exactly(once, key="order.id", name=f"{STATION}.{CASE}", concurrency=SIDE_BY_SIDE)(handler)


async def nats(once: Once, handler: Handler) -> Callable[[], Awaitable[None]]:
    """FastStream on JetStream: one message at a time, all of a pull at a time, or batches."""
    from faststream import AckPolicy
    from faststream.nats import NatsBroker, PullSub

    broker = NatsBroker(BROKER, logger=None)
    pull = PullSub(TOGETHER if CASE in {"side-by-side", "batch"} else 1, batch=CASE == "batch")
    broker.subscriber("orders", stream="ORDERS", durable=CASE, pull_sub=pull, ack_policy=AckPolicy.NACK_ON_ERROR)(
        _exactly(once, handler)
    )
    await broker.start()
    return broker.stop


async def redis(once: Once, handler: Handler) -> Callable[[], Awaitable[None]]:
    """FastStream on a stream of Redis: one message at a time, or batches."""
    from faststream import AckPolicy
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(BROKER, logger=None)
    batch = CASE == "batch"
    nack = AckPolicy.NACK_ON_ERROR
    first = StreamSub("orders", group=CASE, consumer="one", batch=batch, max_records=TOGETHER)
    claims = StreamSub("orders", group=CASE, consumer="two", batch=batch, min_idle_time=60_000)
    guarded = _exactly(once, handler)
    broker.subscriber(stream=first, ack_policy=nack)(broker.subscriber(stream=claims, ack_policy=nack)(guarded))
    await broker.start()
    return broker.stop


async def rabbitmq(once: Once, handler: Handler) -> Callable[[], Awaitable[None]]:
    """A queue of RabbitMQ, ten messages side by side: aio-pika alone, or RabbitWorker."""
    if CASE in UNGUARDED:
        import aio_pika

        connection = await aio_pika.connect(BROKER)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2 * SIDE_BY_SIDE)
        queue = await channel.get_queue(CASE)
        gate = asyncio.Semaphore(SIDE_BY_SIDE)

        async def handle(message: Any) -> None:
            async with gate, message.process():
                await handler(json.loads(message.body))

        await queue.consume(handle)
        return connection.close
    from onceward.rabbitmq import RabbitWorker

    return _running(RabbitWorker(once, CASE, handler, url=BROKER, key="order.id", name=CASE, concurrency=SIDE_BY_SIDE))


async def kafka(once: Once, handler: Handler) -> Callable[[], Awaitable[None]]:
    """A topic of Kafka, ten messages side by side: aiokafka alone, or KafkaWorker."""
    if CASE in UNGUARDED:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=BROKER, group_id=CASE, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        over = False

        async def handle() -> None:
            while not over:
                found = await consumer.getmany(timeout_ms=200, max_records=SIDE_BY_SIDE)
                records = [record for part in found.values() for record in part]
                await asyncio.gather(*(handler(json.loads(record.value)) for record in records))
                if records:
                    await consumer.commit()

        task = asyncio.create_task(handle())

        async def stop() -> None:
            nonlocal over
            over = True
            await task
            await consumer.stop()

        return stop
    from onceward.kafka import KafkaWorker

    worker = KafkaWorker(
        once, "orders", handler, servers=BROKER, group=CASE, key="order.id", name=CASE, concurrency=SIDE_BY_SIDE
    )
    return _running(worker)


def _running(worker: Any) -> Callable[[], Awaitable[None]]:
    task = asyncio.create_task(worker.run_async())

    async def stop() -> None:
        worker.stop()
        await task

    return stop


STATIONS = {"nats": nats, "redis": redis, "rabbitmq": rabbitmq, "kafka": kafka}

if __name__ == "__main__":
    asyncio.run(main())
