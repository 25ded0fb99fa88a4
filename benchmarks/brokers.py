"""Messages a second of one consumer, and its CPU for each: bare, guarded, and with the effect in the record's transaction.

Run: python benchmarks/brokers.py [MESSAGES [STATION ...]]
Goals: with the effect in the record's transaction at most 25 % below the bare consumer; batches at least 3 times single messages.

Each effect is a row in PostgreSQL 15, which also has the ledger, with fsync on. "bare" commits the effect and acknowledges: a
redelivery doubles it. "claim-transaction" commits effect and completion together, after a claim of its own; "once-transaction" also
claims in that transaction, within an unguarded handler. NATS and Redis are consumed by FastStream, one message at a time or 50 in a
batch. "side-by-side" is guarded, too: FastStream begins all 50 messages of a pull of NATS at once. RabbitMQ is consumed by aio-pika
and RabbitWorker, Kafka by aiokafka and KafkaWorker, 10 messages side by side; Celery's tasks by one worker with 10 threads over
RabbitMQ. idemkit's guard is round the bare consumer's handler, with its records in the same database; it is measured if it is
installed. The brokers start here; consumers are processes that take turns, and the first fifth of their messages only warms up.
"""

import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from measure import table
from servers.kafka import Kafka
from servers.nats import Nats
from servers.postgres import Postgres
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis

MESSAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROUNDS = 3
CONSUMER = Path(__file__).with_name("brokers_consumer.py")
SINGLE = ("bare", "guarded", "claim-transaction", "once-transaction")
BODIES = [json.dumps({"id": number}).encode() for number in range(MESSAGES)]


class NatsStation:
    """A stream of JetStream, with a consumer for each case."""

    cases = (*SINGLE, "side-by-side", "batch")

    def __init__(self) -> None:
        self.server = Nats()
        self.url = self.server.url

    def fill(self, _case: str) -> None:
        """Put the messages there, for one case."""
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        import nats

        connection = await nats.connect(self.url)
        jetstream = connection.jetstream()
        try:
            await jetstream.delete_stream("ORDERS")
        except nats.js.errors.NotFoundError:
            pass
        await jetstream.add_stream(name="ORDERS", subjects=["orders"])
        for body in BODIES:
            await jetstream.publish("orders", body)
        await connection.close()


class RedisStation:
    """A stream of Redis."""

    cases = (*SINGLE, "batch")

    def __init__(self) -> None:
        self.server = Redis()
        self.url = self.server.url

    def fill(self, case: str) -> None:
        """As above."""
        with self.server.client() as client:
            client.delete("orders")
            client.xgroup_create("orders", case, "0", mkstream=True)
            for body in BODIES:
                client.xadd("orders", {"__data__": body})


class RabbitStation:
    """A quorum queue for each case."""

    cases = SINGLE

    def __init__(self) -> None:
        self.server = Rabbitmq()
        self.url = self.server.url

    def fill(self, case: str) -> None:
        """As above."""
        self.server.queue(case)
        self.server.publish(case, *BODIES)


class KafkaStation:
    """A topic, with a group for each case; each round reads what it has not read."""

    cases = SINGLE

    def __init__(self) -> None:
        self.server = Kafka()
        self.url = self.server.servers
        self.server.make("orders", "orders.onceward-retry", "orders.onceward-dead", partitions=8)

    def fill(self, case: str) -> None:
        """As above."""
        if case == "bare":
            self.server.send("orders", *BODIES)


class CeleryStation:
    """Celery's queue in RabbitMQ."""

    cases = SINGLE
    consumer = CONSUMER.with_name("brokers_celery.py")

    def __init__(self) -> None:
        self.server = Rabbitmq()
        self.url = self.server.url

    def fill(self, _case: str) -> None:
        """As above."""
        from celery import Celery

        with Celery(broker=self.url, set_as_current=False) as app, app.producer_or_acquire() as producer:
            for body in BODIES:
                app.send_task("order", (json.loads(body),), producer=producer, ignore_result=True)


STATIONS = {
    "celery": CeleryStation,
    "nats": NatsStation,
    "redis": RedisStation,
    "rabbitmq": RabbitStation,
    "kafka": KafkaStation,
}


def main(names: Iterable[str]) -> None:
    """Print a table for each station."""
    database = Postgres()
    try:
        for name in names:
            station = STATIONS[name]()
            try:
                _measure(name, station, database)
            finally:
                station.server.stop()
    finally:
        database.stop()


def _measure(name: str, station: object, database: Postgres) -> None:
    cases = list(station.cases)
    if importlib.util.find_spec("idemkit") is not None and name != "celery":
        cases.append("idemkit")
    seen: dict[str, list[dict]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            for text in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE effects (id bigint)"):
                database.sql(text, database="test")
            station.fill(case)
            command = [
                sys.executable,
                getattr(station, "consumer", CONSUMER),
                name,
                case,
                station.url,
                database.url,
                str(MESSAGES),
                str(database.pid),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
            ((made,),) = database.sql("SELECT count(DISTINCT id) FROM effects", database="test")
            assert int(made) == MESSAGES, f"{name} {case}: {made} effects"
            seen[case].append(json.loads(done.stdout))
    medians = {
        case: {name: statistics.median(one[name] for one in told) for name in told[0]} for case, told in seen.items()
    }
    rows = [
        (
            case,
            f"{1 / one['wall']:.0f}",
            *(f"{one[of] * 1e6:.0f}" for of in ("cpu", "server")),
            medians["bare"]["wall"] / one["wall"],
        )
        for case, one in medians.items()
    ]
    table(f"{name}: {MESSAGES} messages", ("", "messages/s", "CPU us/message", "database's", "of bare"), rows)


if __name__ == "__main__":
    main(sys.argv[2:] or STATIONS)
