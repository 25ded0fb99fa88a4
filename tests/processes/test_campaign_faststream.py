"""Campaigns over FastStream: consumers are killed, their broker and their ledger are restarted, and no message is lost or doubled."""

import asyncio
import json
import sys
from contextlib import suppress

import pytest

from faults.campaign import campaign, own_ledger
from onceward import Once, OncewardError
from places import SUPPORT
from servers.kafka import Kafka
from servers.nats import Nats
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis

pytestmark = pytest.mark.nightly

DEAD = "orders.onceward-dead"


class NatsStation:
    """A stream on a server of its own."""

    ledger = "postgresql"

    def __init__(self):
        self.server = Nats()
        self.url = self.server.url
        self._do(lambda jetstream: jetstream.add_stream(name="ORDERS", subjects=["orders"]))

    def _do(self, work):
        import nats

        async def connected():
            connection = await nats.connect(self.url, allow_reconnect=False, connect_timeout=5)
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(connected())

    def publish(self, bodies):
        async def send(jetstream):
            for body in bodies:
                await jetstream.publish("orders", body)

        self._do(send)

    def left(self):
        info = self._do(lambda jetstream: jetstream.consumer_info("ORDERS", "shop"))
        return info.num_pending + info.num_ack_pending

    def letters(self):
        """Take the dead letters: their headers and bodies."""

        async def take(jetstream):
            pulled = await jetstream.pull_subscribe(DEAD, durable="redrive")
            try:
                messages = await pulled.fetch(1000, timeout=2)
            except TimeoutError:  # there are none
                return []
            for message in messages:
                await message.ack_sync()
            return [(message.headers, message.data) for message in messages]

        return self._do(take)

    def restart(self):
        self.server.kill()
        self.server.start()

    def stop(self):
        self.server.stop()


class RedisStation:
    """A stream on a server of its own, which writes all to disk at once."""

    ledger = "sqlite"

    def __init__(self):
        self.server = Redis(appendonly="yes", appendfsync="always")
        self.url = self.server.url
        self.server.ask("XGROUP", "CREATE", "orders", "shop", "0", "MKSTREAM")

    def publish(self, bodies):
        with self.server.client() as client:
            for body in bodies:
                client.xadd("orders", {"__data__": body})

    def left(self):
        with self.server.client() as client:
            (group,) = client.xinfo_groups("orders")
        return group["lag"] + group["pending"]

    def letters(self):
        import redis
        from faststream.redis.parser import BinaryMessageFormatV1

        with redis.Redis(port=self.server.port) as client:
            found = client.xrange(DEAD)
            for entry, _ in found:
                client.xdel(DEAD, entry)
        told = [BinaryMessageFormatV1.parse(fields[b"__data__"]) for _, fields in found]
        return [(headers, body) for body, headers in told]

    def restart(self):
        self.server.kill()
        self.server.start()

    def stop(self):
        self.server.stop()


class RabbitStation:
    """A quorum queue on a node of its own."""

    ledger = "mysql"

    def __init__(self):
        self.server = Rabbitmq()
        self.url = self.server.url
        self.server.queue("orders")

    def publish(self, bodies):
        self.server.publish("orders", *bodies)

    def left(self):
        return sum(count for name, count in self.server.held().items() if name != DEAD)

    def letters(self):
        return [(message.headers, message.body) for message in self.server.take(DEAD)]

    def restart(self):
        self.server.restart()

    def stop(self):
        self.server.stop()


class KafkaStation:
    """A topic of eight partitions on a broker of its own."""

    ledger = "dynamodb"

    def __init__(self):
        self.server = Kafka()
        self.url = self.server.servers
        self.server.make("orders", "orders.onceward-retry", DEAD, partitions=8)

    def publish(self, bodies):
        self.server.send("orders", *bodies)

    def left(self):
        count = 0
        for topic in ("orders", "orders.onceward-retry"):
            done = self.server.committed("shop", topic)
            count += len(self.server.read(topic)) - sum(done.values())
        return count

    def letters(self):
        found = self.server.read(DEAD)
        return [({name: value.decode() for name, value in one.headers}, one.value) for one in found]

    def restart(self):
        self.server.kill()
        self.server.start()

    def stop(self):
        self.server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [NatsStation, RedisStation, RabbitStation, KafkaStation], ids=["nats", "redis", "rabbit", "kafka"]
)
def test_no_message_is_lost_or_doubled_over_faststream(kind, request, tmp_path):
    station = kind()
    name = request.node.callspec.id
    try:
        with own_ledger(kind.ledger, request, tmp_path) as (ledger, server):

            def publish(numbers):
                station.publish([json.dumps({"id": number}).encode() for number in numbers])

            def redrive(numbers):
                """Send again what is still missing; other letters are of copies."""
                with_letters = {json.loads(body)["id"]: headers for headers, body in station.letters()}
                once = Once(ledger.url)
                for number in set(numbers) & with_letters.keys():
                    with suppress(OncewardError):  # it runs already
                        once.ledger.unpark(with_letters[number]["onceward-key"])
                    publish([number])
                once.close()

            campaign(
                ledger,
                server,
                tmp_path,
                command=[sys.executable, SUPPORT / "workers" / "faststream_consumer.py", name, station.url],
                publish=publish,
                left=station.left,
                restart=station.restart,
                redrive=redrive,
                kill_every=20.0 if kind is KafkaStation else 5.0,
            )
    finally:
        station.stop()
