"""The keys of messages: bytes that are not UTF-8 are never one key, and a CloudEvent has one whichever form it comes in."""

from types import SimpleNamespace

import pytest

from onceward.cloudevents import cloud_event_key
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_topics import KafkaMessage
from onceward.errors import KeyMissing
from onceward.rabbitmq.broker import message_delivery
from onceward.redis_streams.message import StreamEntry, entry_delivery
from tables import each

NUMBERS = [number.to_bytes(8, "big") for number in (200, 201)]


def from_kafka(key):
    place = {"topic": "t", "partition": 0, "offset": 1, "timestamp": 1}
    record = SimpleNamespace(**place, value=b"{}", headers=[("Idempotency-Key", key)])
    return KafkaMessage(record, ours=False).delivery(grouped=False)


def from_rabbitmq(key):
    message = SimpleNamespace(headers={"Idempotency-Key": key}, body=b"{}", message_id=None)
    return message_delivery(message, "q")


def from_redis(key):
    return entry_delivery(StreamEntry("1-0", {b"Idempotency-Key": key, b"order": key}, 1), "s")


def test_two_keys_of_bytes_are_two_keys():
    for source in (from_kafka, from_rabbitmq, from_redis):
        assert len({source(key).key for key in NUMBERS}) == 2
    assert len({from_redis(key).data["order"] for key in NUMBERS}) == 2


def delivery(headers=(), data=None):
    made = Delivery("queue", None)
    made.id, made.header, made.data = "m", dict(headers).get, data
    return made


def test_binary_http_and_nats_encode_their_headers_and_have_the_key_of_the_structured_form():
    structured = delivery(data={"specversion": "1.0", "source": "/café", "id": "7 %"})
    encoded = delivery({"ce-source": "/caf%C3%A9", "ce-id": "7%20%25"})
    plain = delivery({"ce_source": "/café", "ce_id": "7 %"})
    assert {cloud_event_key(each) for each in (structured, encoded, plain)} == {"/café 7 %"}


@each("space", [" ", "\t", "\u00a0"])
def test_white_space_in_a_source_is_refused_because_another_event_could_have_its_key(space):
    source = f"/shop{space}eu"
    for event in (
        delivery({"ce_source": source, "ce_id": "7"}),
        delivery({"ce-source": "/shop%20eu", "ce-id": "7"}),
        delivery(data={"specversion": "1.0", "source": source, "id": "7"}),
    ):
        with pytest.raises(KeyMissing, match="white space"):
            cloud_event_key(event)
    assert cloud_event_key(delivery({"ce_source": "/shop", "ce_id": "eu 7"})) == "/shop eu 7"
