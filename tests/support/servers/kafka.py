"""A Kafka broker for tests: one node without ZooKeeper (KRaft), its jars from Maven Central."""

import asyncio
import subprocess
from pathlib import Path

from servers.environments import from_maven
from servers.needs import free_port, needs
from servers.server import Server

VERSION = "4.2.0"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def jars() -> Path:
    """Return the folder of Kafka's jars; kafka-tools formats the disk."""
    artifacts = [f"org.apache.kafka:{name}:{VERSION}" for name in ("kafka_2.13", "kafka-tools")]
    return from_maven(f"kafka-{VERSION}", *artifacts)


class Kafka(Server):
    """A running broker. Topics are made by tests; it makes none itself. Groups begin without a delay."""

    _tries = 12  # it is a JVM

    def __init__(self, **settings: object) -> None:
        self._java = needs("java", "apt-get install default-jre-headless")
        self._jars = jars()
        super().__init__()
        control = free_port()
        plain = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{control}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{control}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._scratch / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "broker.session.timeout.ms": 2000,  # a killed broker may register again after it
            "broker.heartbeat.interval.ms": 500,
            "auto.create.topics.enable": "false",
            "log.cleaner.enable": "false",
            "num.network.threads": 1,
            "num.io.threads": 2,
        }
        self._config = self._scratch / "server.properties"
        told = plain | {name.replace("_", "."): value for name, value in settings.items()}
        self._config.write_text("".join(f"{name}={value}\n" for name, value in told.items()))
        format_ = self._java_command("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self._config)
        subprocess.run(format_, check=True, capture_output=True, timeout=120)
        self.start()

    def _java_command(self, *program: object) -> list[str]:
        java = [self._java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"]
        return [*java, *map(str, program)]

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _command(self):
        return self._java_command("kafka.Kafka", self._config)

    def make(self, *topics: str, partitions: int = 1, **configs: str) -> None:
        from aiokafka.admin import NewTopic
        from aiokafka.errors import for_code

        texts = {name.replace("_", "."): text for name, text in configs.items()}

        async def make(admin):
            new = [NewTopic(name, partitions, 1, topic_configs=texts) for name in topics]
            for error in (await admin.create_topics(new)).topic_errors:
                assert error[1] == 0, f"{error[0]}: {for_code(error[1])}"
            async with asyncio.timeout(60):
                while not set(topics) <= set(await admin.list_topics()):
                    await asyncio.sleep(0.05)

        self._as_admin(make)

    def send(self, topic: str, *values: bytes, key: bytes | None = None, partition: int | None = None, **headers: str):
        from aiokafka import AIOKafkaProducer

        lines = [(name, value.encode()) for name, value in headers.items()]

        async def send(producer):
            sent = [await producer.send(topic, value, key, partition, headers=lines) for value in values]
            await asyncio.gather(*sent)

        self._with(lambda: AIOKafkaProducer(bootstrap_servers=self.servers, acks="all"), send)

    def read(self, topic: str) -> list:
        """Return all records of a topic, in the order of their partitions and offsets."""

        async def read(consumer):
            places, ends = await self._ends(consumer, topic)
            if not places:
                return []
            consumer.assign(places)
            await consumer.seek_to_beginning()
            found = []
            async with asyncio.timeout(120):
                while any([await consumer.position(place) < ends[place] for place in places]):
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += records
            return sorted(found, key=lambda record: (record.partition, record.offset))

        return self._as_consumer(read)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offset of each partition of a topic that has one."""

        async def look(admin):
            return await self._patiently(lambda: admin.list_consumer_group_offsets(group))

        offsets = self._as_admin(look)
        return {at.partition: told.offset for at, told in offsets.items() if at.topic == topic and told.offset >= 0}

    def lag(self, group: str, *topics: str) -> int:
        """Return how many offsets of some topics a group has not committed."""

        def of(topic):
            _, ends = self._as_consumer(lambda consumer: self._ends(consumer, topic))
            return sum(ends.values()) - sum(self.committed(group, topic).values())

        return sum(map(of, topics))

    @staticmethod
    async def _ends(consumer, topic):
        """Return the partitions of a topic, and the ends of those."""
        from aiokafka import TopicPartition

        await consumer._client.force_metadata_update()
        await consumer._client.add_topic(topic)
        places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        return places, await consumer.end_offsets(places) if places else {}

    def _as_admin(self, work):
        from aiokafka.admin import AIOKafkaAdminClient

        return self._with(lambda: AIOKafkaAdminClient(bootstrap_servers=self.servers), work)

    def _as_consumer(self, work):
        from aiokafka import AIOKafkaConsumer

        return self._with(lambda: AIOKafkaConsumer(bootstrap_servers=self.servers), work)

    def _with(self, make, work):
        """Return what ``work`` makes of a client."""

        async def run():
            client = make()
            await self._patiently(client.start)
            try:
                return await work(client)
            finally:
                await (client.close if hasattr(client, "close") else client.stop)()

        return asyncio.run(run())

    @staticmethod
    async def _patiently(start):
        from aiokafka.errors import KafkaError

        for _ in range(3000):
            try:
                return await start()
            except KafkaError:  # it is starting up
                await asyncio.sleep(0.1)
        raise AssertionError("Kafka takes no connections")
