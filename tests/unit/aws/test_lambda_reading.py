"""What is read from the events of each source, and what functions are given of it."""

from __future__ import annotations

import base64
from decimal import Decimal
from hashlib import md5

import pytest

from onceward import aws
from onceward.aws.events.streams import user_records
from queues import lambda_events as events
from queues.lambda_events import changed, given, keys, refusing

pytestmark = pytest.mark.sampled(other=2)


# Made by aws_kinesis_agg 1.2.3, AWS's own aggregator.
THREE = base64.b64decode(
    "84mawgoBYQoBYhoNCAAaCXsiaWQiOiAxfRoNCAEaCXsiaWQiOiAyfRoOCAAaCnBsYWluIHRleHTDHP2s/tBB+J+hQQ68yIrX"
)

HASHED = base64.b64decode(
    "84mawgoBYQoBYhIDMTIzEiczNDAyODIzNjY5MjA5Mzg0NjM0NjMzNzQ2MDc0MzE3NjgyMTE0NTUaDwgAEAAaCXsiaWQiOiAxfRoICAEQARoC/wBek7LT"
    "ekeB0WG42ZMZnvlx"
)

EMPTY = base64.b64decode("84mawgoBYRoECAAaAN9EM4XPcJcEGOuQRHOK2JE=")


def test_a_message_may_say_what_its_key_is(once):
    said = {"onceward-key": {"stringValue": "order-1", "dataType": "String"}}
    event = changed(events.sqs("x", "y"), "Records", 0, "messageAttributes", to=said)
    given(once, aws.on_sqs, changed(event, "Records", 1, "messageAttributes", to={"onceward-key": {"stringValue": ""}}))
    assert keys(once) == ["n:m-1", "n:order-1"]
    given(once, aws.on_sqs, changed(event, "Records", 0, "body", to='{"id": 7}'), key="payload.id", name="own")
    assert "own:7" in keys(once)


def test_an_envelope_of_sns_in_sqs_is_taken_off_when_asked_for(once, outcomes):
    event = events.sqs(events.sns_envelope({"id": 7}), events.sns_envelope({"id": 7}))  # SNS delivered it twice
    payloads, deliveries = given(once, aws.on_sqs, event, unwrap="sns")
    assert payloads == [{"id": 7}]
    assert deliveries[0].id == "m-0"
    assert "n:d88d4479-6ec0-54fe-b63f-1cf9df4bb16e" in keys(once)
    aws.on_sqs(once, unwrap="sns", name="n")(refusing)(events.sqs({"id": 7}))
    assert outcomes[-1].status == "malformed"
    assert "no envelope of SNS around it; with raw message delivery leave" in str(outcomes[-1].error)


STREAM_KEY = f'n:("{events.STREAM}","{events.SHARD}:{events.FIRST}")'

FIREHOSE_KEY = (
    'n:("arn:aws:firehose:us-east-2:123456789012:deliverystream/logs",'
    '"49640912821178817833517986466168945147170627572855734274000000")'
)


@pytest.mark.parametrize(
    ("wrapper", "event", "payloads", "key"),
    [
        (aws.on_kinesis, events.kinesis({"id": 1}, "Hello", b"\xff"), [{"id": 1}, "Hello", b"\xff"], STREAM_KEY),
        (aws.on_sns, events.sns({"id": 1}), [{"id": 1}], "n:95df01b4-ee98-5cb9-9903-4c221d41eb5e"),
        (aws.on_eventbridge, events.eventbridge({"n": 1}), [{"n": 1}], "n:6a7e8feb-b491-4cf7-a9f1-bf3703467718"),
        (aws.on_firehose, events.firehose({"id": 1}, "text", b"\xff"), [{"id": 1}, "text", b"\xff"], FIREHOSE_KEY),
        (aws.on_sqs, events.sqs({"id": 1}, "Text.", "[1, 2]", ""), [{"id": 1}, "Text.", [1, 2], ""], "n:m-0"),
        (aws.on_invoke, [1, {"x": 2}], [[1, {"x": 2}]], f"n:{events.Context.aws_request_id}"),
        (aws.on_activemq, events.activemq({"id": 1}, "text"), [{"id": 1}, "text"], 'n:"ID:b-0"'),
    ],
)
def test_each_source_gives_its_payloads_and_has_a_key(once, wrapper, event, payloads, key):
    assert given(once, wrapper, event)[0] == payloads
    assert keys(once)[0] == key


def test_a_stream_has_the_same_keys_for_a_consumer_with_enhanced_fan_out(once):
    event = events.kinesis("x")
    given(once, aws.on_kinesis, event)
    consumer = f"{events.STREAM}/consumer/mine:1530559711"
    assert given(once, aws.on_kinesis, changed(event, "Records", 0, "eventSourceARN", to=consumer)) == ([], [])


def test_aggregates_of_the_kpl_are_taken_apart(once):
    payloads, deliveries = given(once, aws.on_kinesis, events.kinesis(THREE, "plain", HASHED))
    assert payloads == [{"id": 1}, {"id": 2}, "plain text", "plain", {"id": 1}, b"\xff\x00"]
    assert [d.raw["kinesis"]["partitionKey"] for d in deliveries] == ["a", "b", "a", "1", "a", "b"]
    assert [d.id for d in deliveries] == [str(events.FIRST + n) for n in (0, 0, 0, 1, 2, 2)]
    assert deliveries[5].raw["kinesis"]["subSequenceNumber"] == 1
    assert deliveries[5].raw["eventID"] == f"{events.SHARD}:{events.FIRST + 2}"
    assert [d.key[2:] for d in deliveries] == [(0,), (1,), (2,), (), (0,), (1,)]
    assert len(keys(once)) == 6


def aggregate(message):
    return b"\xf3\x89\x9a\xc2" + message + md5(message).digest()


def test_the_kpls_format_is_read_as_the_kpl_writes_it():
    assert user_records(THREE) == [("a", b'{"id": 1}'), ("b", b'{"id": 2}'), ("a", b"plain text")]
    assert user_records(EMPTY) == [("a", b"")]
    long = b"\x0a\xc8\x01" + b"k" * 200 + b"\x1a\x9b\x01\x08\x00\x1a\x96\x01" + b"x" * 150  # lengths of two bytes
    assert user_records(aggregate(long)) == [("k" * 200, b"x" * 150)]
    for other in (b"", THREE[:4], THREE[:20], THREE[:-1], THREE[:-1] + b"x", b"x" + THREE, THREE[4:]):
        assert user_records(other) is None


AGGREGATES = [
    (b"\x1a\x05\x08\x00\x1a\x01x", "list index out of range"),
    (b"\x0a\x01a\x1a\x02\x08\x00", "KeyError(3)"),
    (b"\x0a\x09a", "ends within a field"),
    (b"\x0a\x80", "index out of range"),
    (b"\x0a\x01a\x1a\x04\x08\x00\x18\x05", "can't concat int"),
    (b"\x09\x05", "wire type 1"),
    (b"\x0a\x01\xff", "utf-8"),
]


def test_an_aggregate_that_cannot_be_read_is_one_malformed_record_and_says_why(once, outcomes):
    handle = aws.on_kinesis(once, name="n")(lambda payload: None)
    for message, why in AGGREGATES:
        answer = handle(events.kinesis("before", aggregate(message), "after"))
        assert answer == {"batchItemFailures": [{"itemIdentifier": str(events.FIRST + 1)}]}
        assert why in str(next(o.error for o in outcomes if o.status == "malformed"))
        outcomes.clear()


def test_dynamodb_gives_plain_values(once):
    values = {
        "text": ({"S": "a"}, "a"),
        "whole": ({"N": "-12345678901234567890123456789012345678"}, -12345678901234567890123456789012345678),
        "part": ({"N": "1.5"}, Decimal("1.5")),
        "binary": ({"B": "AAE="}, b"\0\1"),
        "yes": ({"BOOL": True}, True),
        "nothing": ({"NULL": True}, None),
        "map": ({"M": {"list": {"L": [{"S": "x"}, {"N": "1"}]}}}, {"list": ["x", 1]}),
        "texts": ({"SS": ["a", "b"]}, {"a", "b"}),
        "numbers": ({"NS": ["1", "2.5"]}, {1, Decimal("2.5")}),
        "binaries": ({"BS": ["AAE="]}, {b"\0\1"}),
    }
    image = {name: value for name, (value, _) in values.items()}
    event = {"Records": [events.change_record(1, NewImage=image, OldImage={"text": {"S": "b"}})]}
    (payload,), _ = given(once, aws.on_dynamodb_stream, event, key="payload.NewImage.whole")
    assert payload["NewImage"] == {name: plain for name, (_, plain) in values.items()}
    assert (payload["eventName"], payload["Keys"], payload["OldImage"]) == ("MODIFY", {"Id": 1}, {"text": "b"})
    assert keys(once) == ["n:-12345678901234567890123456789012345678"]


def test_a_change_that_is_none_is_malformed(once, outcomes):
    for value in [{}, {"S": 1}, {"N": "x"}, {"B": "?"}, {"X": "1"}, {"S": "a", "N": "1"}, {"L": [1]}, 1]:
        event = {"Records": [events.change_record(1, NewImage={"x": value}), events.change_record(2)]}
        aws.on_dynamodb_stream(once, name="n")(refusing)(event)
        assert [o.status for o in outcomes[-2:]] == ["malformed", "deferred"]


def test_kafka_gives_values_and_keys_by_topic_partition_and_offset(once):
    payloads, deliveries = given(once, aws.on_kafka, events.kafka({0: [{"id": 1}, None], 1: ["text"]}))
    found = {d.id: (d.group, payload) for payload, d in zip(payloads, deliveries, strict=True)}
    values = ("mytopic-0", 15, {"id": 1}), ("mytopic-0", 16, None), ("mytopic-1", 15, "text")
    assert found == {(topic, offset): (topic, value) for topic, offset, value in values}
    cluster = "arn:aws:kafka:us-east-1:123456789012:cluster/Sales/abcd1234-4"
    assert keys(once)[0] == f'n:("{cluster}",mytopic,0,15,1545084650987)'


def test_a_record_of_kafka_with_a_key_in_its_headers_has_that_key(once):
    event = events.kafka({0: [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 3}]})
    records = event["records"]["mytopic-0"]
    for record, text in zip(records, (b"k-1", b"k-1", b"\xff", b""), strict=True):
        record["headers"] = [{"trace": [-61, -92]}, {"Idempotency-Key": list(text)}]
    payloads, deliveries = given(once, aws.on_kafka, event)
    assert payloads == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert deliveries[0].header("trace") == "\u00e4"
    assert "n:k-1" in keys(once)
    assert len(keys(once)) == 3


def test_a_kafka_cluster_of_ones_own_may_get_other_servers(once):
    event = events.self_managed_kafka({0: ["x"]})
    _, (delivery,) = given(once, aws.on_kafka, event)
    assert delivery.source == "SelfManagedKafka"
    assert given(once, aws.on_kafka, event | {"bootstrapServers": "b-3:9092"}) == ([], [])  # a replay
    assert keys(once) == ["n:(mytopic,0,15,1545084650987)"]
    event["records"]["mytopic-0"][0]["timestamp"] = -1  # there is none, and another cluster can have the same place
    assert given(once, aws.on_kafka, event) == ([], [])


def test_s3_gives_a_flat_dict_with_the_decoded_key(once):
    payloads, _ = given(once, aws.on_s3, events.s3("photos/a+b%281%29%C3%A9.jpg"))
    assert payloads == [
        {
            "eventName": "ObjectCreated:Put",
            "eventTime": "2019-09-03T19:37:27.192Z",
            "bucket": "pictures",
            "key": "photos/a b(1)é.jpg",
            "versionId": "yd3d4HaWOT2z",
            "size": 1305107,
            "eTag": "b21b84d653bb07b05b1e6b33684dc11b",
            "sequencer": "0C0F6F405D6ED209E1",
        }
    ]


def test_s3_keys_tell_versions_events_and_moments_apart(once):
    same, tagged = [events.s3_record() for _ in range(2)], events.s3_record() | {"eventName": "ObjectTagging:Put"}
    others = [events.s3_record(version=None), events.s3_record(sequencer="0C0F6F405D6ED209E2"), tagged]
    assert len(given(once, aws.on_s3, {"Records": same + others})[0]) == 4  # the second is a duplicate of the first
    assert 'n:(pictures,"photos/a b(1).jpg",yd3d4HaWOT2z,"ObjectCreated:Put",0C0F6F405D6ED209E1)' in keys(once)


def test_messages_of_amazon_mq_have_a_queue_headers_and_a_key(once):
    payloads, deliveries = given(once, aws.on_rabbitmq, events.rabbitmq({"id": 1}, "text", {"id": 3}))
    assert payloads == [{"id": 1}, "text", {"id": 3}]
    assert [delivery.destination for delivery in deliveries] == ["pizzaQueue", "pizzaQueue", "saladQueue"]
    assert (deliveries[0].header("header1"), deliveries[0].header("numberInHeader")) == ("value1", "10")
    assert keys(once) == ["n:m-0", "n:m-1", "n:m-2"]
    headers = {"Idempotency-Key": {"bytes": list(b"order-7")}, "torn": {"bytes": ["x"]}}
    _, (delivery,) = given(once, aws.on_rabbitmq, events.rabbitmq({"id": 1}, headers=headers, messageId=None))
    assert (delivery.header("torn"), "n:order-7" in keys(once)) == (None, True)
    _, (first, _) = given(once, aws.on_activemq, events.activemq({"id": 1}, "text"))
    assert (first.destination, first.header("index"), first.header("count")) == ("testQueue", "1", None)


@pytest.mark.parametrize(
    ("wrapper", "event"),
    [
        (aws.on_sqs, changed(events.sqs("x", "y"), "Records", 0, "body", to=1)),
        (aws.on_kafka, changed(events.kafka({0: ["x"], 1: ["y"]}), "records", "mytopic-0", 0, "value", to="?")),
        (aws.on_firehose, changed(events.firehose("x", "y"), "records", 0, "data")),
    ],
)
def test_a_record_that_cannot_be_read_harms_no_other(once, outcomes, wrapper, event):
    ran = []
    wrapper(once, name="n")(lambda payload: ran.append(payload) or payload)(event)
    assert ran == ["y"]
    assert sorted(o.status for o in outcomes) == ["done", "malformed"]
    assert isinstance(next(o.error for o in outcomes if not o.ok), aws.MalformedRecord)


@pytest.mark.parametrize(
    ("wrapper", "event"),
    [
        (aws.on_sqs, changed(events.sqs("x", "y"), "Records", 0, "messageId")),
        (aws.on_sqs_fifo, changed(events.fifo(("a", "x"), ("b", "y")), "Records", 0, "messageId")),
        (aws.on_kafka, changed(events.kafka({0: ["x"], 1: ["y"]}), "records", "mytopic-0", 0, "offset")),
        (aws.on_firehose, changed(events.firehose("x", "y"), "records", 0, "recordId")),
    ],
)
def test_a_record_without_an_identifier_fails_the_invocation_at_its_end(once, wrapper, event):
    ran = []
    with pytest.raises(aws.BatchFailed, match=r"identifier|recordId") as caught:
        wrapper(once, name="n")(lambda payload: ran.append(payload) or payload)(event)
    assert ran == ["y"]
    assert caught.value.outcomes[0].status == "malformed"


def test_a_stream_record_without_a_number_fails_the_invocation_at_once(once):
    ran = []
    handle = aws.on_kinesis(once, key="payload.id")(lambda payload: ran.append(payload["id"]))
    event = changed(events.kinesis({"id": 1}, {}, {"id": 3}), "Records", 1, "kinesis", "sequenceNumber")
    with pytest.raises(aws.BatchFailed, match="no identifier"):
        handle(event)
    assert ran == [1]
    assert {key: record.status for key, record in once.store.records.items()} == {"n:1": "COMPLETED", "n:3": "RELEASED"}


def test_a_fifo_message_needs_its_group(once):
    event = changed(events.fifo(("a", "x"), ("a", "y")), "Records", 0, "attributes", "MessageGroupId")
    assert aws.on_sqs_fifo(once)(lambda payload: None)(event) == {"batchItemFailures": [{"itemIdentifier": "m-0"}]}


def test_a_message_under_a_forged_key_is_not_the_real_one_if_inputs_count(once):
    made = []
    handle = aws.on_sqs(once, fingerprint=True)(made.append)
    forged = events.sqs_record("forged", {"id": 0})
    forged["messageAttributes"] = {"onceward-key": {"stringValue": "real", "dataType": "String"}}
    assert handle({"Records": [forged]}) == {"batchItemFailures": []}
    answer = handle({"Records": [events.sqs_record("real", {"id": 42})]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "real"}]}  # to be looked at, and not lost
    assert made == [{"id": 0}]
