"""Kafka beside its worker: dead letters that go back after the fix, topics as targets of the outbox, messages that are sent once."""

import asyncio
import json
from contextlib import closing

import pytest

from fixtures import closing_fixture
from observing import note_outcomes
from onceward import Claim
from onceward.consumers.broker import BrokerError
from onceward.core.record import COMPLETED, PARKED
from onceward.kafka import KafkaRedrive, KafkaTarget, KafkaWorker, send
from onceward.outbox import MessageRefused, OutboxMessage
from tables import each
from waiting import until


def order(number, **more):
    return json.dumps({"id": number, **more}).encode()


def worked(once, kafka, topic, handler, **options):
    told = []
    note_outcomes(lambda outcome: told.append(outcome.status))
    options = {"key": "order.id", "group": "shop", "max_attempts": 1, **options}
    KafkaWorker(once, topic, handler, servers=kafka.servers, **options).run(until_empty=True)
    return told


def failing(order: dict):
    raise ZeroDivisionError


def moved(once, kafka, topic, **options):
    fates = list(KafkaRedrive(once, topic, servers=kafka.servers, **options).run())
    return [(fate.outcome, fate.key) for fate in fates]


def test_a_parked_record_is_handled_after_the_redrive(once, kafka, topic):
    kafka.send(topic, order(1), trace="t")
    assert worked(once, kafka, topic, failing, backoff=(0, 0)) == ["parked"]
    assert once.ledger.show("shop:1")[0].status == PARKED
    assert moved(once, kafka, topic, dry_run=True) == [("moved", "shop:1")]
    assert once.ledger.show("shop:1")[0].status == PARKED
    assert moved(once, kafka, topic) == [("moved", "shop:1")]
    assert moved(once, kafka, topic) == moved(once, kafka, topic, group="shop") == []
    seen = []
    assert worked(once, kafka, topic, lambda order: seen.append(order["id"])) == ["done"]
    assert seen == [1]
    assert once.ledger.show("shop:1")[0].status == COMPLETED


def test_another_input_stays_behind_the_letters_that_were_looked_at(once, kafka, topic):
    kafka.send(topic, order(1, sum=5), order(1, sum=7))

    def handler(order: dict):
        pass

    assert sorted(worked(once, kafka, topic, handler, fingerprint="order", concurrency=1)) == ["done", "mismatch"]
    assert moved(once, kafka, topic) == [("refused", "shop:1")]
    assert moved(once, kafka, topic, completed="drop") == [("refused", "shop:1")], "its input was never handled"
    assert len(kafka.read(f"{topic}.onceward-dead")) == 1


def test_letters_of_another_group_stay(once, kafka, topic):
    kafka.send(topic, b"torn")
    assert worked(once, kafka, topic, failing) == ["malformed"]
    assert moved(once, kafka, topic, group="another") == []
    assert moved(once, kafka, topic, group="shop") == [("moved", None)]


def test_a_run_that_was_cut_off_begins_again_and_the_effect_is_made_once(once, kafka, topic):
    kafka.send(topic, order(1), order(2))
    worked(once, kafka, topic, failing, backoff=(0, 0))
    with closing(KafkaRedrive(once, topic, servers=kafka.servers).run()) as fates:
        assert next(fates).outcome == "moved"
    assert [outcome for outcome, _ in moved(once, kafka, topic)] == ["moved"]
    seen = []
    told = worked(once, kafka, topic, lambda order: seen.append(order["id"]))
    assert sorted(seen) == [1, 2]
    assert sorted(told) == ["done", "done"]


def test_a_broker_that_goes_away_ends_the_run(once, kafka, topic, monkeypatch):
    async def nothing(*_, **__):
        await asyncio.sleep(0.05)
        return {}

    kafka.send(topic, b"torn")
    assert worked(once, kafka, topic, failing) == ["malformed"]
    monkeypatch.setattr("aiokafka.AIOKafkaConsumer.getmany", nothing)
    assert list(KafkaRedrive(once, topic, servers=kafka.servers).run(lambda: True)) == []
    monkeypatch.setattr("onceward.kafka.redrive.PATIENCE", 1)
    with pytest.raises(BrokerError, match="no answer from Kafka"):
        moved(once, kafka, topic)


target = closing_fixture(lambda kafka, topic: KafkaTarget(f"kafka://{kafka.servers}/{topic}"))


def headers(record):
    return {name: value.decode() for name, value in record.headers}


def test_a_message_carries_its_key_its_headers_and_its_group(target, kafka, topic):
    messages = [OutboxMessage("k-1", '{"id": 1}', {"tenant": "eu"}, group="anna"), OutboxMessage("k-2", "text")]
    assert target.send(messages) == [None, None]
    first, second = kafka.read(topic)
    assert (first.key, first.value) == (b"anna", b'{"id": 1}')
    assert headers(first) == {"Idempotency-Key": "k-1", "tenant": "eu"}
    assert (second.key, second.value) == (None, b"text")


def test_a_message_that_is_too_large_is_refused_and_the_others_are_sent(kafka):
    kafka.make("small", max_message_bytes="1000")
    target = KafkaTarget(f"kafka://{kafka.servers}/small")
    answers = target.send([OutboxMessage("k-1", "x" * 5000), OutboxMessage("k-2", "y")])
    target.close()  # the broker refuses both, as they are one batch: each is sent alone then
    assert [type(answer) for answer in answers] == [MessageRefused, type(None)]


def test_what_kafka_never_takes_is_refused_before_it_is_stored(target):
    for message in (OutboxMessage("k-1", "x", delay=5), OutboxMessage("k-1", "x", {"Idempotency-Key": "mine"})):
        with pytest.raises(ValueError, match="leave it out"):
            target.check(message)
        assert isinstance(target.send([message])[0], MessageRefused)


@each("address", ["kafka:", "kafka://host:1", "kafka://anna:secret@host:1/orders", "kafka:a b"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="is not a topic"):
        KafkaTarget(address)


def test_a_chain_of_two_topics_takes_effect_once(once, kafka, topic):
    second, seen = f"{topic}-charges", []
    kafka.make(second)
    target = f"kafka://{kafka.servers}/{second}"

    @once(key="order", name="place")
    def place(order, claim: Claim):
        claim.send(target, {"order": order})

    place(1)
    place(1)
    key = send(once, target, {"order": 2}, key="order-2")
    assert send(once, target, {"order": 2}, key="order-2") == key
    kafka.send(second, b'{"order": 2}', **{"Idempotency-Key": key})  # as if its answer had been lost
    until(lambda: len(kafka.read(second)) >= 3)

    def charge(charged: dict):
        seen.append(charged["order"])

    KafkaWorker(once, second, charge, servers=kafka.servers).run(until_empty=True)
    assert sorted(seen) == [1, 2]
