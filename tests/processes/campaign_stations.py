"""The brokers of campaigns (test_campaigns.py), each on a server of its own that loses nothing when it is killed."""

import asyncio
import json
import sys
import threading
import time
from contextlib import suppress

import dramatiq
import nats
import psycopg
from celery import Celery
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from nats.js.api import ConsumerConfig
from procrastinate import App, SyncPsycopgConnector
from psycopg.types.json import Jsonb

from faults.campaign import MESSAGES
from onceward import Once, OncewardError
from onceward.aws.dead_letters.letters import unpark_to
from onceward.aws.sqs.queue import Queue
from onceward.kafka import KafkaRedrive
from onceward.rabbitmq.redrive import RabbitRedrive
from places import WORKERS
from servers.kafka import Kafka
from servers.ministack import Ministack
from servers.nats import Nats
from servers.postgres import Postgres
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis


class Station:
    """A broker: what is sent to it, what is left in it, the command of a consumer, and more options of the campaign."""

    ledger = "postgresql"  # the store that the campaign usually has
    url = ""  # of the ledger, set by the test

    def __init__(self, server, *command, **options):
        self.server, self.command, self.options = server, [sys.executable, *command], options

    def restart(self):
        self.server.restart()

    def redrive(self, once, numbers):
        """Let the parked keys run, and send again what is missing."""
        for record, _ in once.ledger.records(status="PARKED"):
            with suppress(OncewardError):  # it runs already
                once.ledger.unpark(record.key)
        self.publish(numbers)

    def stop(self):
        self.server.stop()


CONSUMER = WORKERS / "campaign_worker.py"


def body(number):
    return json.dumps({"id": number}).encode()


def work(place, *settings):
    """Return the arguments of ``onceward work``."""
    function = ["--call", "faults.campaign_effects:handle_async", "--key", "order.id", "--name", "campaign"]
    chosen = [word for setting in settings for word in ("--set", setting)]
    return ["-m", "onceward", "work", place, *function, "--lease", 4, "--max-attempts", 4, *chosen]


OFTEN = ("settings.session_timeout_ms=6000", "settings.heartbeat_interval_ms=1000")


def kept_redis():
    """Start a Redis that keeps what it has acknowledged."""
    return Redis(appendonly="yes", appendfsync="always")


def as_our_sender(number):
    return {"__data__": json.dumps({"data": body(number).decode()})}


class NatsStation(Station):
    def __init__(self, durable, kind):
        server = Nats()
        super().__init__(server, CONSUMER, kind, server.url)
        self._durable = durable
        self._do(lambda jetstream: jetstream.add_stream(name="ORDERS", subjects=["orders"]))
        # What a killed worker held comes again soon.
        settings = ConsumerConfig(durable_name=durable, filter_subject="orders", ack_wait=6.0, max_ack_pending=10_000)
        self._do(lambda jetstream: jetstream.add_consumer("ORDERS", settings))

    def _do(self, work):
        async def connected():
            connection = await nats.connect(self.server.url, allow_reconnect=False, connect_timeout=5)
            try:
                return await work(connection.jetstream(timeout=30))
            finally:
                await connection.close()

        return asyncio.run(connected())

    def publish(self, numbers):
        async def send(jetstream):
            for number in numbers:
                await jetstream.publish("orders", body(number))

        self._do(send)

    def left(self):
        info = self._do(lambda jetstream: jetstream.consumer_info("ORDERS", self._durable))
        return info.num_pending + info.num_ack_pending


class RedisStation(Station):
    """A stream; ``entry`` makes the fields of an order's entry."""

    stream = "orders"

    def __init__(self, kind, entry=lambda number: {"__data__": body(number)}):
        server = kept_redis()
        super().__init__(server, CONSUMER, kind, server.url)
        self._entry = entry

    def publish(self, numbers):
        with self.server.client() as client:
            for number in numbers:
                client.xadd(self.stream, self._entry(number))

    def left(self):
        with self.server.client() as client:
            (group,) = client.xinfo_groups(self.stream)
        return group["lag"] + group["pending"]


class FastStreamRedisStation(RedisStation):
    ledger = "sqlite"

    def __init__(self):
        super().__init__("faststream_redis")
        self.server.ask("XGROUP", "CREATE", "orders", "shop", "0", "MKSTREAM")


class TaskiqStation(RedisStation):
    ledger, stream = "dynamodb", "campaign"

    def __init__(self):
        super().__init__("taskiq", lambda number: self._task("handle", f"t-{number}", {"id": number}))
        self._over = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    @staticmethod
    def _task(name, task_id, *arguments):
        told = {"task_id": task_id, "task_name": name, "labels": {"retry_on_error": "True"}, "labels_types": {}}
        return {"data": json.dumps({**told, "args": arguments, "kwargs": {}})}

    def _tick(self):
        """Send what makes the broker look for the messages of killed workers."""
        while not self._over.wait(1.0):
            with suppress(Exception), self.server.client() as client:  # the broker is starting
                client.xadd(self.stream, self._task("tick", "tick"))

    def left(self):
        return max(0, super().left() - 1)  # a tick may be on its way

    def stop(self):
        self._over.set()
        super().stop()


class RabbitStation(Station):
    def __init__(self, kind, ledger="postgresql"):
        server = Rabbitmq()
        super().__init__(server, CONSUMER, kind, server.url)
        self.ledger = ledger
        self.server.queue("orders")
        time.sleep(6)  # a node that is killed right after a declaration forgets the quorum queue

    def publish(self, numbers):
        self.server.publish("orders", *map(body, numbers))

    def left(self):
        # A worker that is killed between a dead letter and its acknowledgement leaves two. The second one's key is completed.
        return sum(count for name, count in self.server.held().items() if not name.endswith("-dead"))


class RabbitWorkerStation(RabbitStation):
    def redrive(self, once, numbers):
        # A kill may strike the last attempt, too: the effect commits with its record, so it has not happened.
        with suppress(Exception):
            list(RabbitRedrive(once, "orders", url=self.server.url, in_doubt="rerun").run())


class KafkaStation(Station):
    """A topic of eight partitions, and the topic of its consumers' retries."""

    def __init__(self, group, *command, ledger="postgresql"):
        server = Kafka()
        environment = {"KAFKA_SERVERS": server.servers}
        super().__init__(server, *command, kill_every=20.0, environment=environment)
        self.ledger, self._group = ledger, group
        if group == "shop":
            self.command.append(server.servers)
            server.make("orders", "orders.onceward-retry", "orders.onceward-dead", partitions=8)
        else:
            server.make("orders", partitions=8)

    def publish(self, numbers):
        self.server.send("orders", *map(body, numbers))

    def left(self):
        return self.server.lag(self._group, "orders", "orders.onceward-retry")

    def redrive(self, once, numbers):
        if self._group == "shop":
            super().redrive(once, numbers)
            return
        # A worker was killed in the last attempt of some: their effects were not made, as poison fails before.
        for _ in KafkaRedrive(once, "orders", servers=self.server.servers, in_doubt="rerun").run():
            pass


class SqsStation(Station):
    """A queue without dead letters: parked messages are kept in the ledger."""

    ledger = "dynamodb"

    def __init__(self, folder):
        server = Ministack("sqs", folder=folder / "sqs")
        self.queue = server.queue("orders")
        command = work(f"sqs:{self.queue}", "visibility=4", "wait=2")
        super().__init__(server, *command, messages=10 * MESSAGES, rate=400, poison=500)

    def publish(self, numbers):
        for first in range(0, len(numbers), 10):
            bodies = [body(number).decode() for number in numbers[first : first + 10]]
            entries = [{"Id": str(place), "MessageBody": one} for place, one in enumerate(bodies)]
            sent = self.server.ask("AmazonSQS.SendMessageBatch", QueueUrl=self.queue, Entries=entries)
            assert not sent.get("Failed")

    def left(self):
        return self.server.left(self.queue)

    def redrive(self, once, numbers):
        for record, _ in once.ledger.records(status="PARKED"):
            with suppress(OncewardError):  # its message is not kept yet
                unpark_to(once.ledger, record.key, Queue(self.queue))


class CeleryStation(Station):
    """Celery's own worker. On Redis it loses a task when a worker dies as it takes it, the second time, too."""

    def __init__(self, server, ledger):
        super().__init__(server, concurrency=2)
        self.ledger = ledger
        self.options["environment"] = {"ONCEWARD_BROKER": server.url, "PYTHONWARNINGS": "default"}
        self._client = Celery("client", broker=server.url)
        self._client.conf.broker_transport_options = {"confirm_publish": True}
        worker = [*self.command, "-m", "celery", "--workdir", WORKERS, "-A", "celery_campaign", "worker", "-c", 2]
        worker += ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        # RabbitMQ refuses a second worker of one name.
        self.command = ["sh", "-c", 'exec "$@" -n "$$@%h"', "sh", *worker]

    def publish(self, numbers):
        with self._client.producer_or_acquire() as producer:
            for number in numbers:
                self._client.send_task("campaign.handle", ({"id": number},), producer=producer, ignore_result=True)

    def left(self):
        if isinstance(self.server, Rabbitmq):
            return self.server.held()["celery"]
        with self.server.client() as client:
            waiting = client.llen("celery") + client.hlen("unacked")
        return waiting or self._send_lost_again()

    def _send_lost_again(self):
        """Send what has not ended and what no queue has, and return how many these are."""
        once = Once(self.url)
        ended = {record.key for record, _ in once.ledger.records("campaign:", status=["COMPLETED", "PARKED"])}
        once.close()
        lost = [number for number in range(MESSAGES) if f"campaign:{number}" not in ended]
        self.publish(lost)
        return len(lost)


class DramatiqStation(Station):
    def __init__(self, server, ledger):
        super().__init__(server, CONSUMER, "dramatiq", server.url)
        self.ledger, self._on_redis = ledger, isinstance(server, Redis)
        broker, options = (RedisBroker, {}) if self._on_redis else (RabbitmqBroker, {"confirm_delivery": True})
        self._broker = broker(url=server.url, **options)
        self._broker.declare_queue("campaign", **({} if self._on_redis else {"ensure": True}))

    def publish(self, numbers):
        for number in numbers:
            self._broker.enqueue(dramatiq.Message("campaign", "handle", ({"id": number},), {}, {}))

    def left(self):
        queues = ("campaign", "campaign.DQ")
        if self._on_redis:
            return sum(self._broker.client.hlen(f"dramatiq:{name}.msgs") for name in queues)
        held = self.server.held()
        return sum(held[name] for name in queues)

    def stop(self):
        self._broker.close()
        super().stop()


class ProcrastinateStation(Station):
    ledger = "redis"

    def __init__(self):
        server = Postgres()
        super().__init__(server, CONSUMER, "procrastinate", server.url)
        schema = App(connector=SyncPsycopgConnector()).schema_manager.get_schema()
        with psycopg.connect(server.url) as connection:
            connection.execute(schema.replace("%%", "%"))

    def publish(self, numbers):
        columns, values = "queue_name, task_name, priority, args", "'default', 'handle', 0, %s"
        defer = f"INSERT INTO procrastinate_jobs ({columns}) VALUES ({values})"
        with psycopg.connect(self.server.url) as connection, connection.cursor() as cursor:
            cursor.executemany(defer, [(Jsonb({"order": {"id": number}}),) for number in numbers])

    def left(self):
        count = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND task_name = 'handle'"
        with psycopg.connect(self.server.url) as connection:
            return connection.execute(count).fetchone()[0]

    def restart(self):
        self.server.crash()
        self.server.start()


CAMPAIGNS = {
    "nats": lambda _: NatsStation("campaign", "nats"),
    "redis_streams": lambda _: RedisStation("redis", as_our_sender),
    "rabbitmq": lambda _: RabbitWorkerStation("rabbitmq"),
    "kafka": lambda _: KafkaStation("campaign", *work("kafka:orders", *OFTEN)),
    "sqs": SqsStation,
    "faststream-nats": lambda _: NatsStation("shop", "faststream_nats"),
    "faststream-redis": lambda _: FastStreamRedisStation(),
    "faststream-rabbit": lambda _: RabbitStation("faststream_rabbit", "mysql"),
    "faststream-kafka": lambda _: KafkaStation("shop", CONSUMER, "faststream_kafka", ledger="dynamodb"),
    "celery-redis": lambda _: CeleryStation(kept_redis(), "postgresql"),
    "celery-rabbitmq": lambda _: CeleryStation(Rabbitmq(), "mysql"),
    "dramatiq-redis": lambda _: DramatiqStation(kept_redis(), "postgresql"),
    "dramatiq-rabbitmq": lambda _: DramatiqStation(Rabbitmq(), "sqlite"),
    "taskiq": lambda _: TaskiqStation(),
    "procrastinate": lambda _: ProcrastinateStation(),
}  # by a name: what makes the station in a folder
