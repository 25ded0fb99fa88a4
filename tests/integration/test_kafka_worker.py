"""The worker for Kafka against a real broker: what is committed, retried, dead-lettered, sent on and kept in order; and its doctor."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from observing import note_outcomes
from onceward.consumers.broker import BrokerError
from onceward.consumers.dead_letters import GROUP, retry_name
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_topics import CLOCK, BrokerClock
from onceward.core.record import COMPLETED
from onceward.kafka import KafkaWorker
from places import SOURCES
from servers.needs import missing
from servers.wrong_clocks import library, wrong_clock
from tables import each
from waiting import until
from waiting import working as at_work

PATIENCE = 180.0
QUICK = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 500}


def order(number, **more):
    return json.dumps({"id": number, **more}).encode()


def drain(once, kafka, topic, handler, **options):
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    worker = KafkaWorker(once, topic, handler, servers=kafka.servers, group=topic, settings=QUICK, **options)
    worker.run(until_empty=True)
    return told


def working(once, kafka, topic, handler, **options):
    options = {"group": topic, "settings": QUICK, **options}
    return at_work(KafkaWorker(once, topic, handler, servers=kafka.servers, **options))


def retries(kafka, topic):
    """The records of the retry topic, without those that only ask for the broker's time: a busy machine needs some."""
    records = kafka.read(retry_name(topic))
    return [record for record in records if (GROUP, CLOCK.encode()) not in record.headers]


def headers(record):
    return {name: value.decode() for name, value in record.headers}


def test_the_default_key_is_the_header_or_else_where_the_record_is(once, kafka, topic):
    kafka.send(topic, order(1), order(1))
    kafka.send(topic, order(2), **{"Idempotency-Key": "k-1"})
    kafka.send(topic, order(2), **{"Idempotency-Key": "k-1"})
    keys = []

    def handler(order, delivery: Delivery):
        keys.append(delivery.key)

    told = drain(once, kafka, topic, handler)
    assert sorted(told) == ["done", "done", "done", "replayed"]
    assert "k-1" in keys
    assert {key[:3] for key in keys if key != "k-1"} == {(topic, "0", "0"), (topic, "0", "1")}


def test_a_failed_record_waits_in_the_retry_topic_and_its_partition_goes_on(once, kafka, topic):
    kafka.send(topic, order(1), order(2))
    ran = []

    def handler(order):
        ran.append(order["id"])
        if ran.count(1) < 3 and order["id"] == 1:
            raise ZeroDivisionError

    with working(once, kafka, topic, handler, backoff=(0.2, 0.4)):
        until(lambda: ran.count(1) == 3 and 2 in ran)
        until(lambda: kafka.committed(topic, f"{topic}.onceward-retry") == {0: 2})
    assert kafka.committed(topic, topic) == {0: 2}
    waited = [headers(record) for record in retries(kafka, topic)]
    assert [told["onceward-receives"] for told in waited] == ["1", "2"]
    assert {told["onceward-from"].rpartition("/")[0] for told in waited} == {f"{topic}/0/0"}
    assert all(0 < float(told["onceward-delay"]) <= 0.4 for told in waited)


def test_in_order_a_partition_waits_for_its_failed_record(once, kafka, topic):
    kafka.send(topic, *map(order, range(5)))
    ran = []

    def handler(order):
        ran.append(order["id"])
        if order["id"] == 1 and ran.count(1) < 3:
            raise ZeroDivisionError

    with working(once, kafka, topic, handler, order=True, concurrency=5, backoff=(0.1, 0.2)):
        until(lambda: kafka.committed(topic, topic) == {0: 5})
    assert ran == [0, 1, 1, 1, 2, 3, 4]
    assert retries(kafka, topic) == []


def test_nothing_above_a_record_that_is_not_done_is_committed(once, kafka, topic):
    kafka.send(topic, *map(order, range(4)))
    go, ran = threading.Event(), []

    def handler(order):
        if order["id"] == 1:
            go.wait(PATIENCE)
        ran.append(order["id"])

    with working(once, kafka, topic, handler, concurrency=4):
        until(lambda: sorted(ran) == [0, 2, 3])
        until(lambda: kafka.committed(topic, topic) == {0: 1})
        time.sleep(1.5)  # another commit would be due
        assert kafka.committed(topic, topic) == {0: 1}
        go.set()
        until(lambda: kafka.committed(topic, topic) == {0: 4})


def test_a_rebalance_commits_what_is_done_before_another_member_begins(once, kafka):
    topic = "rebalanced"
    kafka.make(topic, partitions=4)
    ran, told = [], []
    note_outcomes(lambda outcome: told.append(outcome.status))
    values = [order(number) for number in range(200)]
    kafka.send(topic, *values)

    def handler(order):
        time.sleep(0.02)
        ran.append(order["id"])

    with working(once, kafka, topic, handler, key="order.id", concurrency=4):
        until(lambda: len(ran) > 20)
        with working(once, kafka, topic, handler, key="order.id", concurrency=4):
            until(lambda: len(ran) > 100)
        until(lambda: sum(kafka.committed(topic, topic).values()) == 200)
    assert sorted(ran) == list(range(200))
    assert told.count("replayed") == 0, "a member that leaves has committed all that it has done"


def test_a_handler_longer_than_a_rebalance_makes_its_effect_once(once, kafka):
    topic = "abandoned"
    kafka.make(topic, partitions=2)
    go, ran = threading.Event(), []

    def handler(order):
        ran.append(order["id"])
        if order["id"] == 0:
            go.wait(PATIENCE)

    kafka.send(topic, order(0), partition=0)
    with working(once, kafka, topic, handler, key="order.id", backoff=(0.2, 0.5)):
        until(lambda: ran == [0])
        with working(once, kafka, topic, handler, key="order.id", backoff=(0.2, 0.5)):
            kafka.send(topic, order(1), partition=0)
            kafka.send(topic, order(2), partition=1)
            until(lambda: {1, 2} <= set(ran))  # both partitions are at work again, beside the handler
            go.set()
            until(lambda: kafka.committed(topic, topic) == {0: 2, 1: 1})
    assert sorted(ran) == [0, 1, 2]
    assert once.ledger.show("shop:0")[0].status == COMPLETED


def test_a_handler_longer_than_the_poll_interval_stays_a_member(once, kafka, topic):
    kafka.send(topic, order(1))
    ran, told = [], []
    note_outcomes(lambda outcome: told.append(outcome.status))

    def handler(order):
        time.sleep(4)
        ran.append(order["id"])

    with working(once, kafka, topic, handler, settings={**QUICK, "max_poll_interval_ms": 1500}, concurrency=1):
        until(lambda: kafka.committed(topic, topic) == {0: 1})
    assert (ran, told) == ([1], ["done"])


def test_an_old_retry_without_an_offset_ends_the_worker_because_it_may_have_been_handled(
    once, kafka, topic, monkeypatch
):
    kafka.send(topic, order(1))
    drain(once, kafka, topic, print)  # it makes the retry topic
    send(kafka, retry_name(topic), order(1), headers=[(GROUP, topic.encode())])
    monkeypatch.setattr("onceward.consumers.retry_topics.BrokerClock.age", lambda *_: once.policy.retention + 1)
    with pytest.raises(BrokerError, match="--reset-offsets"):
        drain(once, kafka, topic, lambda order: pytest.fail("it is handled"))
    monkeypatch.undo()
    assert kafka.committed(topic, retry_name(topic)) == {}
    assert drain(once, kafka, topic, lambda order: None) == ["done"]


def test_a_retry_that_is_read_before_its_partition_is_ready_is_not_lost(once, kafka, topic, monkeypatch):
    drain(once, kafka, topic, print)  # it makes the retry topic
    send(kafka, retry_name(topic), order(1), headers=[(GROUP, topic.encode())])
    for slow, seconds in ((AIOKafkaConsumer.committed, 1.0), (BrokerClock.ask, 2.0)):

        async def late(*given, slow=slow, seconds=seconds):
            await asyncio.sleep(seconds)
            return await slow(*given)

        monkeypatch.setattr(f"{slow.__module__}.{slow.__qualname__}", late)
    ran = []
    with working(once, kafka, topic, ran.append):
        until(lambda: ran)


def test_a_topic_that_is_missing_ends_the_worker_at_its_start(once, kafka):
    with pytest.raises(BrokerError, match="topic nowhere does not exist"):
        KafkaWorker(once, "nowhere", print, servers=kafka.servers).run()


def test_a_client_that_fails_for_good_ends_the_worker(once, kafka, topic, monkeypatch):
    async def broken(*_, **__):
        raise AssertionError("a defect of the client")

    monkeypatch.setattr("aiokafka.AIOKafkaConsumer.getmany", broken)
    with pytest.raises(BrokerError, match="a defect of the client"):
        KafkaWorker(once, topic, print, servers=kafka.servers).run()


@each(
    ("options", "why"),
    [
        ({"settings": {"enable_auto_commit": True}}, "enable_auto_commit out"),
        ({"settings": {"auto_offset_reset": "latest"}}, "auto_offset_reset out"),
        ({"settings": {"session_timeout": 5}}, "no session_timeout"),
        ({"retry": "orders"}, "three different topics"),
    ],
)
def test_settings_that_break_the_promises_are_refused(once, options, why):
    with pytest.raises(ValueError, match=why):
        KafkaWorker(once, "orders", print, **options)


def send(kafka, topic, value, key=None, headers=(), **settings):
    """Send a record as no method of the server does: with any headers, compressed, without a value."""
    work = lambda producer: producer.send_and_wait(topic, value, key, headers=list(headers))
    kafka._with(lambda: AIOKafkaProducer(bootstrap_servers=kafka.servers, **settings), work)


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
