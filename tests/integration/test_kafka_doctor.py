"""Doctor reads the real settings of topics, and says which of them lose records."""

from onceward import Once
from onceward.core.policy import Policy
from onceward.kafka import KafkaWorker
from onceward.kafka.doctor import TopicFacts, _durability, kafka_findings
from servers.kafka import Kafka
from servers.needs import free_port

DAY = 86_400_000
POLICY = Policy(retention=14 * 86400.0)


def seen(kafka: Kafka, topic, policy=POLICY):
    return [(finding.level, finding.check) for finding in kafka_findings(topic, policy, kafka.servers)]


def test_topics_that_a_worker_makes_keep_what_waits_in_them(kafka, topic):
    once = Once("memory:", name="shop")
    KafkaWorker(once, topic, print, servers=kafka.servers).run(until_empty=True)
    once.close()
    found = kafka_findings(topic, POLICY, kafka.servers)
    assert [finding for finding in found if finding.check == "retries and dead letters"] == []
    assert [finding.says for finding in found if finding.check == "retention"] == [
        f"the ledger remembers what is done for as long as {topic} keeps it"
    ]


def test_letters_that_are_compacted_or_deleted_are_told(kafka, topic):
    kafka.make(f"{topic}.onceward-dead", cleanup_policy="compact", retention_ms=str(DAY), max_message_bytes="1200000")
    kafka.make(f"{topic}.onceward-retry", max_message_bytes="1000", retention_ms="-1")
    found = [(f.level, f.says) for f in kafka_findings(topic, POLICY, kafka.servers) if f.check.startswith("retries")]
    assert [level for level, _ in found] == ["warning", "warning", "error", "warning"]
    assert "1000 bytes" in found[0][1]
    assert "message.timestamp.type=CreateTime" in found[1][1]
    assert "compacted" in found[2][1]
    assert "1 days" in found[3][1]


def test_a_ledger_that_forgets_sooner_than_the_topic_is_told(kafka, topic):
    assert ("warning", "retention") in seen(kafka, topic, Policy(retention=3600.0))
    assert ("ok", "retention") in seen(kafka, topic, Policy(retention=None))


def test_a_missing_topic_and_a_cluster_that_is_away_are_told(kafka):
    assert seen(kafka, "nowhere") == [("error", "topic")]
    (finding,) = kafka_findings("orders", POLICY, f"127.0.0.1:{free_port()}")
    assert finding.level == "unknown"


def test_replicas_and_unclean_elections_are_judged():
    safe = TopicFacts("orders", 3, {"min.insync.replicas": "2"})
    assert [finding.level for finding in _durability(safe)] == ["ok"]
    alone = TopicFacts("orders", 3, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    assert [finding.level for finding in _durability(alone)] == ["error", "warning"]
