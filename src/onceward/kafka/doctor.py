"""What is unsafe about the topics of a worker, for ``onceward doctor``."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from onceward.consumers.retry_topics import ROOM, TIMESTAMPS, configs_of
from onceward.core.policy import DAY, Policy
from onceward.kafka.topics import Topics, connection, describe_error
from onceward.stores.inspection import Finding

_TOPIC: Final = "Apache Kafka documentation, Topic Configs"


class TopicFacts(NamedTuple):
    """What is known of a topic."""

    name: str
    copies: int  # the fewest replicas of a partition
    configs: Mapping[str, str]  # empty if this user may not read them

    @property
    def retention(self) -> float | None:
        """For how many seconds it keeps a record; None for ever."""
        milliseconds = int(self.configs.get("retention.ms", -1))
        return None if milliseconds < 0 else milliseconds / 1000


def kafka_findings(topic: str, policy: Policy, servers: str | None = None) -> list[Finding]:
    """Return what is unsafe about a topic, its retry topic and its dead-letter topic."""
    topics = Topics(topic)
    try:
        main, others = asyncio.run(_look(topics, servers))
    except KafkaError as error:
        says = f"{topic}: {describe_error(error, connection(servers)['bootstrap_servers'])}"
        return [Finding("unknown", "Kafka", says, "it was not looked at", "see KAFKA_SERVERS")]
    if main is None:
        return [Finding("error", "topic", f"{topic} does not exist", "a worker ends at its start", "create it")]
    findings = [Finding("ok", "topic", f"{topic} exists")]
    for one in (main, *others):
        findings += _durability(one)
    for one in others:
        findings += _letters(one, main)
        findings += _timestamps(one) if one.name == topics.retry else ()
    missing = {topics.retry, topics.dead} - {one.name for one in others}
    if missing:
        says = f"{' and '.join(sorted(missing))} do not exist yet"
        findings.append(Finding("ok", "retries and dead letters", f"{says}: a worker makes them at its start"))
    return [*findings, _retention(main, policy)]


async def _look(topics: Topics, servers: str | None) -> tuple[TopicFacts | None, list[TopicFacts]]:
    admin = AIOKafkaAdminClient(**connection(servers))
    try:
        await admin.start()
        there = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
        facts = [
            await _facts(admin, name, there[name]) for name in (topics.main, topics.retry, topics.dead) if name in there
        ]
    finally:
        await admin.close()
    return (facts[0], facts[1:]) if topics.main in there else (None, facts)


async def _facts(admin: Any, name: str, partitions: list[dict[str, Any]]) -> TopicFacts:
    return TopicFacts(name, min(len(one["replicas"]) for one in partitions), await configs_of(admin, name))


def _durability(topic: TopicFacts) -> Iterator[Finding]:
    """Check that a record which was acknowledged survives a broker. onceward's own sends have acks=all."""
    check, least = "replicas", int(topic.configs.get("min.insync.replicas", 1))
    if topic.configs.get("unclean.leader.election.enable") == "true":
        says = f"{topic.name} has unclean.leader.election.enable=true"
        why = "a replica that lacks records may lead: they are lost, although they were acknowledged"
        yield Finding("error", check, says, why, "set it to false", _TOPIC)
    if topic.copies < 2 or least < 2:
        says = f"{topic.name} has {topic.copies} replica(s) and min.insync.replicas={least}"
        why = "a record that one broker acknowledged is lost with that broker"
        fix = "three replicas, and min.insync.replicas=2. Producers need acks=all"
        yield Finding("warning", check, says, why, fix, _TOPIC)
    else:
        yield Finding("ok", check, f"{topic.name} has {topic.copies} replicas, and {least} of them have each record")


def _letters(topic: TopicFacts, main: TopicFacts) -> Iterator[Finding]:
    """Check that a topic for retries or dead letters keeps what is in it."""
    check = "retries and dead letters"
    if "compact" in topic.configs.get("cleanup.policy", ""):
        says, why = (
            f"{topic.name} is compacted",
            "of the records of one key only the last one stays: the others are lost",
        )
        yield Finding("error", check, says, why, "set cleanup.policy=delete", _TOPIC)
    seconds = topic.retention
    if seconds is not None and seconds < 14 * DAY:
        says = f"{topic.name} keeps a record for {seconds / DAY:.2g} days"
        why = "what nobody has redriven, or retried, by then is lost"
        yield Finding("warning", check, says, why, "set retention.ms=-1", _TOPIC)
    room, size = topic.configs.get("max.message.bytes"), main.configs.get("max.message.bytes")
    if room is not None and size is not None and int(room) < int(size) + ROOM // 2:
        says = f"{topic.name} takes records of {room} bytes, and {main.name} of {size}"
        why = "the headers of a dead letter need room: a record that does not fit holds up its partition's offset"
        yield Finding("warning", check, says, why, f"set max.message.bytes={int(size) + ROOM}", _TOPIC)


def _timestamps(retry: TopicFacts) -> Iterator[Finding]:
    """Check that the broker stamps the records of the retry topic, whose timestamps say when they are due."""
    ((setting, value),) = TIMESTAMPS.items()
    if retry.configs and retry.configs.get(setting) != value:
        says = f"{retry.name} has {setting}={retry.configs.get(setting)}"
        why = "retries come too early or too late when the clock of a worker is wrong"
        yield Finding("warning", "retries and dead letters", says, why, f"set {setting}={value}", _TOPIC)


def _retention(main: TopicFacts, policy: Policy) -> Finding:
    """Check that the ledger remembers a record for as long as it can come again."""
    check, seconds = "retention", main.retention
    if policy.retention is None or (seconds is not None and seconds <= policy.retention):
        return Finding("ok", check, f"the ledger remembers what is done for as long as {main.name} keeps it")
    keeps = "for ever" if seconds is None else f"for {seconds / DAY:.2g} days"
    says = f"{main.name} keeps records {keeps}, and the ledger forgets after {policy.retention / DAY:.2g} days"
    why = "a group whose offsets were reset or have expired reads old records again, and they run again"
    return Finding("warning", check, says, why, "give the guard a longer retention, or the topic a shorter one", _TOPIC)
