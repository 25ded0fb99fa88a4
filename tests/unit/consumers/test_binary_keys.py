"""Bytes that are not UTF-8, such as a long of Java, are keys, too: two of them are never one key."""

from types import SimpleNamespace

from onceward.aws.events import amazon_mq, kafka
from onceward.faststream.on_rabbit import RabbitSettlement
from onceward.kafka.partitions import Partition, received
from onceward.rabbitmq.message import message_delivery
from onceward.redis_streams.message import StreamEntry, entry_delivery

NUMBERS = [number.to_bytes(8, "big") for number in (200, 201)]


def from_kafka(key):
    record = SimpleNamespace(
        topic="t", partition=0, offset=1, timestamp=1, value=b"{}", headers=[("Idempotency-Key", key)]
    )
    return received(record, Partition(ordered=False), ours=False).delivery(grouped=False)


def from_rabbitmq(key):
    message = SimpleNamespace(headers={"Idempotency-Key": key}, body=b"{}", message_id=None)
    return message_delivery(message, "q")


def from_redis(key):
    return entry_delivery(StreamEntry("1-0", {b"Idempotency-Key": key, b"order": key}, 1), "s")


def from_lambda_kafka(key):
    record = {"topic": "t", "partition": 0, "offset": 1, "headers": [{"Idempotency-Key": list(key)}]}
    return kafka._deliveries({"eventSource": "aws:kafka", "records": {"t-0": [record]}})[0]


def from_lambda_rabbitmq(key):
    headers = {"Idempotency-Key": {"bytes": list(key)}}
    message = {"basicProperties": {"headers": headers}, "data": ""}
    return amazon_mq._deliveries({"eventSource": "aws:rmq", "rmqMessagesByQueue": {"q::/": [message]}})[0]


def test_two_keys_of_bytes_are_two_keys():
    for source in (from_kafka, from_rabbitmq, from_redis, from_lambda_kafka, from_lambda_rabbitmq):
        assert len({source(key).key for key in NUMBERS}) == 2
    assert len({from_redis(key).data["order"] for key in NUMBERS}) == 2


def test_an_empty_header_is_no_text():
    raw = SimpleNamespace(headers={"order": None, "shop": "a"}, body=b"{}")
    settlement = SimpleNamespace(source="q")
    (delivery,) = RabbitSettlement.deliveries(settlement, SimpleNamespace(raw_message=raw, message_id="1"))
    assert (delivery.header("order"), delivery.header("shop")) == (None, "a")
