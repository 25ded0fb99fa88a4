"""The worker for Kafka against a real broker: what is committed, retried, dead-lettered, and kept in order."""

import threading
import time

import pytest

from observing import note_outcomes
from onceward.consumers.broker import BrokerError
from onceward.consumers.delivery import Delivery
from onceward.core.record import COMPLETED
from onceward.kafka import KafkaWorker
from queues.kafka_runs import PATIENCE, QUICK, drain, headers, order, retries, working
from tables import each
from waiting import until


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
        ({"settings": {"session_timeout": 5}}, "no session_timeout"),
        ({"retry": "orders"}, "three different topics"),
    ],
)
def test_settings_that_break_the_promises_are_refused(once, options, why):
    with pytest.raises(ValueError, match=why):
        KafkaWorker(once, "orders", print, **options)
