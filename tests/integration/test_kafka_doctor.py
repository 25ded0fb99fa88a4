"""Doctor reads the real settings of topics, and says which of them lose records."""

from onceward.core.policy import Policy
from onceward.kafka.doctor import kafka_findings
from servers.needs import free_port

DAY = 86_400_000
POLICY = Policy(retention=14 * 86400.0)


def seen(kafka, topic, policy=POLICY):
    return [(finding.level, finding.check) for finding in kafka_findings(topic, policy, kafka.servers)]


def test_letters_that_are_compacted_or_deleted_are_told(kafka, topic):
    kafka.make(f"{topic}.onceward-dead", cleanup_policy="compact", retention_ms=str(DAY), max_message_bytes="1200000")
    kafka.make(f"{topic}.onceward-retry", max_message_bytes="1000", retention_ms="-1")
    found = [(f.level, f.says) for f in kafka_findings(topic, POLICY, kafka.servers) if f.check.startswith("retries")]
    expected = [
        ("warning", "1000 bytes"),
        ("warning", "message.timestamp.type=CreateTime"),
        ("error", "compacted"),
        ("warning", "1 days"),
    ]
    for (level, says), (wanted, word) in zip(found, expected, strict=True):
        assert (level, word in says) == (wanted, True), says


def test_a_ledger_that_forgets_sooner_than_the_topic_is_told(kafka, topic):
    assert ("warning", "retention") in seen(kafka, topic, Policy(retention=3600.0))
    assert ("ok", "retention") in seen(kafka, topic, Policy(retention=None))


def test_a_missing_topic_and_a_cluster_that_is_away_are_told(kafka):
    assert seen(kafka, "nowhere") == [("error", "topic")]
    (finding,) = kafka_findings("orders", POLICY, f"127.0.0.1:{free_port()}")
    assert finding.level == "unknown"
