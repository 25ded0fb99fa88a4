"""What a Kafka worker sends on, though headers, sizes or clocks are strange; and what doctor says of topics that lose records."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from aiokafka import AIOKafkaProducer

from observing import note_outcomes
from onceward.core.policy import Policy
from onceward.kafka.doctor import kafka_findings
from places import SOURCES
from queues.kafka_runs import PATIENCE, drain, headers, order, retries, working
from servers.needs import free_port, missing
from servers.wrong_clocks import library, wrong_clock
from waiting import until


def send(kafka, topic, value, key=None, headers=(), **settings):
    """Send a record as no method of the server does: with any headers, compressed, without a value."""

    async def sent():
        producer = AIOKafkaProducer(bootstrap_servers=kafka.servers, **settings)
        await kafka._patiently(producer.start)
        try:
            await producer.send_and_wait(topic, value, key, headers=list(headers))
        finally:
            await producer.stop()

    asyncio.run(sent())


def failing(order):
    raise ZeroDivisionError


def test_headers_that_a_handler_forwarded_do_not_count(once, kafka, topic):
    forwarded = {"group": b"another", "delay": b"86400", "receives": b"9", "from": b"o/0/1/5"}
    for number, (name, value) in enumerate(forwarded.items()):
        send(kafka, topic, order(number), headers=[(f"onceward-{name}", value)])
    seen = []
    assert drain(once, kafka, topic, lambda order: seen.append(order["id"])) == ["done"] * 4
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_malformed_record_names_no_key_of_another_message(once, kafka, topic):
    send(kafka, topic, b"torn", headers=[("onceward-key", b"shop:victim"), ("trace", b"t")])

    def handler(order: dict):
        pass

    assert drain(once, kafka, topic, handler) == ["malformed"]
    (letter,) = kafka.read(f"{topic}.onceward-dead")
    assert "onceward-key" not in headers(letter)
    assert headers(letter)["trace"] == "t"


@pytest.mark.parametrize(
    ("beside", "configs"), [("dead", {"cleanup_policy": "compact,delete"}), ("retry", {"retention_bytes": "1000"})]
)
def test_a_topic_that_loses_dead_letters_or_retries_is_refused_at_start(once, kafka, topic, beside, configs):
    kafka.make(f"{topic}.onceward-{beside}", **configs)
    with pytest.raises(ValueError, match="loses retries or dead letters"):
        drain(once, kafka, topic, failing)


def test_a_record_that_no_topic_takes_waits_longer_each_time(once, kafka, topic):
    for name in ("retry", "dead"):
        kafka.make(f"{topic}.onceward-{name}", max_message_bytes="1000")
    kafka.send(topic, json.dumps({"id": 1, "text": os.urandom(4000).hex()}).encode(), order(2))
    ran, told = [], []
    note_outcomes(lambda outcome: told.append(outcome.status))

    def handler(order):
        ran.append(order["id"])
        if order["id"] == 1:
            raise ZeroDivisionError

    with working(once, kafka, topic, handler, key="order.id", max_attempts=2, backoff=(0.1, 600)) as worker:
        until(lambda: told.count("parked") > 1)
        until(lambda: worker.in_flight == 0)
    assert sorted(ran) == [1, 1, 2]
    assert kafka.committed(topic, topic) == {}  # nothing is lost


def test_copies_have_all_headers_of_the_record_and_its_partition(once, kafka):
    topic = "copied-whole"
    kafka.make(topic, partitions=3)
    strange = [("bytes", b"\xff\x00"), ("nothing", None), ("twice", b"1"), ("twice", b"2")]
    send(kafka, topic, order(1), key=b"k", headers=strange)
    (place,) = [record.partition for record in kafka.read(topic)]
    with working(once, kafka, topic, failing, key="order.id", max_attempts=2, backoff=(0.1, 0.1)):
        until(lambda: kafka.read(f"{topic}.onceward-dead"))
    copies, letters = retries(kafka, topic), kafka.read(f"{topic}.onceward-dead")
    assert copies
    for copy in (*copies, *letters):  # a busy machine may copy one twice, as after a lost reply
        assert list(copy.headers)[:4] == strange
        assert (copy.key, copy.partition) == (b"k", place)


@pytest.mark.sampled("+1h")
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_worker_whose_clock_is_wrong_waits_as_it_was_told(once, kafka, topic, tmp_path, offset):
    if library() is None:
        missing("libfaketime is not installed: apt-get install faketime")
    kafka.send(topic, order(1))
    drain(once, kafka, topic, failing, key="order.id", backoff=(1200, 1200))
    (tmp_path / "shop.py").write_text("def charge(order):\n    print('ran', order)\n")
    command = f"work kafka:{topic} --call shop:charge --key order.id --set group={topic} --until-empty --json --store sqlite:///l.db"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "KAFKA_SERVERS": kafka.servers, **wrong_clock(offset)}
    run = [sys.executable, "-m", "onceward", *command.split()]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "ran" in done.stdout) == (0, False), done.stderr
    assert kafka.committed(topic, f"{topic}.onceward-retry") == {}


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
