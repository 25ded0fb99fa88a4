"""Shops that get their orders from a broker: a subject of NATS, a stream of Redis, or a queue of RabbitMQ, alike for tests."""

import asyncio
import contextlib
import json
import uuid
from typing import NamedTuple

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from onceward.nats import NatsWorker
from onceward.rabbitmq import RabbitWorker
from onceward.redis_streams import RedisStreamsWorker
from waiting import until


class Letter(NamedTuple):
    body: bytes | str
    headers: dict


class NatsShop:
    """A stream of its own on a server; ``settings`` are the stream's."""

    broker = "nats"

    def __init__(self, server, **settings):
        self.url = server.url
        name = f"n{uuid.uuid4().hex[:8]}"
        self.stream, self.orders = name.upper(), f"{name}.orders"
        self.dead = f"{self.orders}.onceward-dead"
        self._settings = {"name": self.stream, "subjects": [self.orders], "storage": StorageType.FILE} | settings
        self.make()

    def make(self):
        """Make the stream, also once more."""
        self.do(lambda jetstream: jetstream.add_stream(StreamConfig(**self._settings)))

    def do(self, work):
        async def run():
            connection = await nats.connect(self.url)
            try:
                return await work(connection.jetstream(timeout=30))
            finally:
                await connection.close()

        return asyncio.run(run())

    def publish(self, *orders, **headers):
        """Send orders, as JSON unless they are bytes."""

        async def work(jetstream):
            for order in orders:
                await jetstream.publish(self.orders, _bytes(order), headers=headers or None)

        self.do(work)

    def consumer(self, **settings):
        """Make the consumer that a worker would make, with other settings."""
        told = {"durable_name": "shop", "filter_subject": self.orders, "ack_policy": AckPolicy.EXPLICIT} | settings
        self.do(lambda jetstream: jetstream.add_consumer(self.stream, ConsumerConfig(**told)))

    def pending(self):
        """Return how many orders are out and not acknowledged."""
        return self.do(lambda jetstream: jetstream.consumer_info(self.stream, "shop")).num_ack_pending

    def letters(self):
        return self.do(lambda jetstream: jetstream.stream_info(self.dead.replace(".", "-"))).state.messages

    def letter(self):
        async def work(jetstream):
            with contextlib.suppress(nats.js.errors.NotFoundError):
                return await jetstream.get_msg(self.dead.replace(".", "-"), 1)

        found = until(lambda: self.do(work))
        return Letter(found.data, found.headers)

    def worker(self, once, handler, *, orders=None, **options):
        settings = {"url": self.url, "key": "order.id", "backoff": (0.2, 4.0)} | options
        return NatsWorker(once, orders or self.orders, handler, **settings)


class RedisShop:
    """A stream of its own on a server that keeps it."""

    broker = "redis"

    def __init__(self, server):
        self.server, self.url = server, server.url
        self.orders = f"orders-{uuid.uuid4().hex[:8]}"

    def publish(self, *orders, **headers):
        """Add orders as the outbox does, as JSON unless they are bytes."""
        with self.server.client() as client:
            for order in orders:
                told = {"data": _bytes(order).decode(), "headers": headers}
                client.xadd(self.orders, {"__data__": json.dumps(told)})

    def pending(self):
        """Return how many orders are out and not acknowledged."""
        with self.server.client() as client:
            return client.xpending(self.orders, "shop")["pending"]

    def letter(self):
        with self.server.client() as client:
            fields = until(lambda: client.xrange(f"{self.orders}.onceward-dead"))[0][1]
        told = json.loads(fields["__data__"])
        return Letter(told["data"], told["headers"])

    def worker(self, once, handler, **options):
        settings = {"url": self.url, "key": "order.id", "backoff": (0.2, 4.0), "idle": 3.0} | options
        return RedisStreamsWorker(once, self.orders, handler, **settings)


class RabbitShop:
    """A quorum queue of its own on a node; ``arguments`` are the queue's."""

    broker = "rabbitmq"

    def __init__(self, server, **arguments):
        self._server, self.url = server, server.url
        self.orders = server.queue(f"orders-{uuid.uuid4().hex[:8]}", **arguments)

    def publish(self, *orders, **headers):
        self._server.publish(self.orders, *orders, headers=headers)

    def pending(self):
        return self._server.ready(self.orders)

    def letter(self):
        dead = f"{self.orders}.onceward-dead"
        until(lambda: self._server.ready(dead))
        found = self._server.take(dead)[0]
        return Letter(found.body, found.headers)

    def worker(self, once, handler, **options):
        settings = {"url": self.url, "key": "order.id", "wait": 0.2, "backoff": (0.2, 4.0)} | options
        return RabbitWorker(once, self.orders, handler, **settings)


def _bytes(order):
    return order if isinstance(order, bytes) else json.dumps(order).encode()
