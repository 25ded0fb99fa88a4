"""Topics as targets of the outbox, and messages that are sent once."""

import pytest

from onceward import Claim
from onceward.kafka import KafkaTarget, KafkaWorker, send
from onceward.outbox import MessageRefused, OutboxMessage
from tables import each
from waiting import until


@pytest.fixture
def target(kafka, topic):
    made = KafkaTarget(f"kafka://{kafka.servers}/{topic}")
    yield made
    made.close()


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
