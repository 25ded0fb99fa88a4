"""A Kafka broker for tests: one node without ZooKeeper (KRaft), its jars from Maven Central."""

import asyncio
import subprocess
from pathlib import Path

from servers.brokers import BrokerServer
from servers.environments import from_maven
from servers.needs import free_port, needs

VERSION = "4.2.0"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def jars() -> Path:
    """Return the folder of Kafka's jars; kafka-tools formats the disk."""
    return from_maven(
        f"kafka-{VERSION}", *(f"org.apache.kafka:{name}:{VERSION}" for name in ("kafka_2.13", "kafka-tools"))
    )


class Kafka(BrokerServer):
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
        format_ = self._command("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self._config)
        subprocess.run(format_, check=True, capture_output=True, timeout=120)
        self.start()

    def _command(self, *program: object) -> list[str]:
        java = [self._java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"]
        return [*java, *map(str, program)]

    @property
    def servers(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def _begin(self):
        return self._popen(self._command("kafka.Kafka", self._config), start_new_session=True)

    # --- past everything of ours --------------------------------------------------------------------------------------

    def make(self, *topics: str, partitions: int = 1, **configs: str) -> None:
        """Make topics."""
        asyncio.run(self._make(topics, partitions, {name.replace("_", "."): text for name, text in configs.items()}))

    async def _make(self, topics, partitions, configs) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic
        from aiokafka.errors import for_code

        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await self._patiently(admin.start)
        try:
            new = [NewTopic(name, partitions, 1, topic_configs=configs) for name in topics]
            for error in (await admin.create_topics(new)).topic_errors:
                assert error[1] == 0, f"{error[0]}: {for_code(error[1])}"
            async with asyncio.timeout(60):
                while not set(topics) <= set(await admin.list_topics()):
                    await asyncio.sleep(0.05)
        finally:
            await admin.close()

    def send(self, topic: str, *values: bytes, key: bytes | None = None, partition: int | None = None, **headers: str):
        """Send records, one after the other."""
        asyncio.run(self._send(topic, values, key, partition, [(k, v.encode()) for k, v in headers.items()]))

    async def _send(self, topic, values, key, partition, headers) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.servers, acks="all")
        await self._patiently(producer.start)
        try:
            sent = [await producer.send(topic, value, key, partition, headers=headers) for value in values]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    def read(self, topic: str) -> list:
        """Return all records of a topic, in the order of their partitions and offsets."""
        return asyncio.run(self._read(topic))

    async def _read(self, topic) -> list:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        await self._patiently(consumer.start)
        try:
            await consumer._client.force_metadata_update()
            await consumer._client.add_topic(topic)
            places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
            if not places:
                return []
            ends = await consumer.end_offsets(places)
            consumer.assign(places)
            await consumer.seek_to_beginning()
            found = []
            async with asyncio.timeout(120):
                while any([await consumer.position(place) < ends[place] for place in places]):
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += records
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            await consumer.stop()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offset of each partition of a topic that has one."""
        return asyncio.run(self._committed(group, topic))

    async def _committed(self, group, topic) -> dict[int, int]:
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await self._patiently(admin.start)
        try:
            offsets = await self._patiently(lambda: admin.list_consumer_group_offsets(group))
            return {
                place.partition: told.offset
                for place, told in offsets.items()
                if place.topic == topic and told.offset >= 0
            }
        finally:
            await admin.close()

    def lag(self, group: str, *topics: str) -> int:
        """Return how many offsets of some topics a group has not committed."""
        return asyncio.run(self._lag(group, topics))

    async def _lag(self, group, topics) -> int:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(*topics, bootstrap_servers=self.servers)  # of no group
        await consumer.start()
        try:
            numbers = [(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic)]
            ends = await consumer.end_offsets([TopicPartition(*place) for place in numbers])
        finally:
            await consumer.stop()
        committed = {}
        for topic in topics:
            for number, offset in (await self._committed(group, topic)).items():
                committed[topic, number] = offset
        return sum(end - committed.get(tuple(place), 0) for place, end in ends.items())

    @staticmethod
    async def _patiently(start):
        from aiokafka.errors import KafkaError

        for _ in range(3000):
            try:
                return await start()
            except KafkaError:  # it is starting up
                await asyncio.sleep(0.1)
        raise AssertionError("Kafka takes no connections")
