"""What is read from the events of each source, and what functions are given of it."""

from __future__ import annotations

import base64
import datetime as dt
import operator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pydantic
import pytest

from observing import note_outcomes
from onceward import Claim, KeyMissing, Once
from onceward.aws import (
    BatchFailed,
    Delivery,
    MalformedEvent,
    MalformedRecord,
    on_activemq,
    on_dynamodb_stream,
    on_eventbridge,
    on_firehose,
    on_invoke,
    on_kafka,
    on_kinesis,
    on_rabbitmq,
    on_s3,
    on_sns,
    on_sqs,
    on_sqs_fifo,
)
from onceward.aws.events.kpl import user_records
from onceward.stores.memory import MemoryStore
from queues import lambda_events as events
from queues.lambda_events import changed
from tables import each

pytestmark = pytest.mark.sampled(other=2)

if TYPE_CHECKING:
    from nowhere import Nothing

# Made by aws_kinesis_agg 1.2.3, AWS's own aggregator.
THREE = base64.b64decode(
    "84mawgoBYQoBYhoNCAAaCXsiaWQiOiAxfRoNCAEaCXsiaWQiOiAyfRoOCAAaCnBsYWluIHRleHTDHP2s/tBB+J+hQQ68yIrX"
)
HASHED = base64.b64decode(
    "84mawgoBYQoBYhIDMTIzEiczNDAyODIzNjY5MjA5Mzg0NjM0NjMzNzQ2MDc0MzE3NjgyMTE0NTUaDwgAEAAaCXsiaWQiOiAxfRoICAEQARoC/wBek7LT"
    "ekeB0WG42ZMZnvlx"
)
EMPTY = base64.b64decode("84mawgoBYRoECAAaAN9EM4XPcJcEGOuQRHOK2JE=")
LONG = base64.b64decode(  # its lengths take two bytes
    "84mawgrIAWtra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tr"
    "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tr"
    "a2tra2tra2tra2tra2tra2tra2tra2tra2trGpsBCAAalgF4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4"
    "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4"
    "eHh4eHhcOfEvKK2pXUp7NtXjEgQy"
)


@pytest.fixture
def once():
    return Once(MemoryStore(), name="n")


def keys(once):
    return sorted(once.store.records)


def given(once, wrapper, event, **options):
    """Return what a function without annotations is given of ``event``, and the deliveries."""
    payloads, deliveries = [], []

    @wrapper(once, **options)
    def handle(payload, delivery: Delivery):
        payloads.append(payload)
        deliveries.append(delivery)

    handle(event, events.Context())
    return payloads, deliveries


# --- each source ----------------------------------------------------------------------------------------------------


def test_sqs_gives_json_or_text_and_keys_by_message_id(once):
    payloads, deliveries = given(once, on_sqs, events.sqs({"id": 1}, "Test message.", "[1, 2]", ""))
    assert payloads == [{"id": 1}, "Test message.", [1, 2], ""]
    assert [d.id for d in deliveries] == ["m-0", "m-1", "m-2", "m-3"]
    assert deliveries[0].source == "aws:sqs"
    assert deliveries[0].raw["attributes"]["SenderId"] == "AIDAIENQZJOLO23YVJ4VO"
    assert deliveries[0].body == '{"id": 1}'
    assert keys(once) == ["n:m-0", "n:m-1", "n:m-2", "n:m-3"]


def test_a_message_may_say_what_its_key_is(once):
    said = {"onceward-key": {"stringValue": "order-1", "dataType": "String"}}
    event = changed(events.sqs("x", "y"), "Records", 0, "messageAttributes", to=said)
    given(once, on_sqs, changed(event, "Records", 1, "messageAttributes", to={"onceward-key": {"stringValue": ""}}))
    assert keys(once) == ["n:m-1", "n:order-1"]
    given(once, on_sqs, changed(event, "Records", 0, "body", to='{"id": 7}'), key="payload.id", name="own")
    assert "own:7" in keys(once)


def test_an_envelope_of_sns_in_sqs_is_taken_off_when_asked_for(once):
    event = events.sqs(events.sns_envelope({"id": 7}), events.sns_envelope({"id": 7}))  # SNS delivered it twice
    assert given(once, on_sqs, event)[0][0]["Type"] == "Notification"
    payloads, deliveries = given(once, on_sqs, event, unwrap="sns", name="unwrapped")
    assert payloads == [{"id": 7}]
    assert deliveries[0].id == "m-0"
    assert "unwrapped:d88d4479-6ec0-54fe-b63f-1cf9df4bb16e" in keys(once)


def test_a_message_without_the_envelope_to_take_off_is_malformed(once):
    outcomes = []

    note_outcomes(outcomes.append)

    @on_sqs(once, unwrap="sns")
    def handle(payload):
        raise AssertionError

    assert handle(events.sqs({"id": 7}, "text")) == {
        "batchItemFailures": [{"itemIdentifier": "m-0"}, {"itemIdentifier": "m-1"}]
    }
    assert [str(o.error) for o in outcomes] == [
        'the message has no envelope of SNS around it; with raw message delivery leave unwrap="sns" out'
    ] * 2


def test_kinesis_gives_json_text_or_bytes_and_keys_by_stream_and_shard(once):
    payloads, deliveries = given(once, on_kinesis, events.kinesis({"id": 1}, "Hello", b"\xff\x00"))
    assert payloads == [{"id": 1}, "Hello", b"\xff\x00"]
    assert deliveries[0].id == str(events.FIRST)
    assert keys(once)[0] == f'n:("{events.STREAM}","{events.SHARD}:{events.FIRST}")'


def test_a_stream_has_the_same_keys_for_a_consumer_with_enhanced_fan_out(once):
    event = events.kinesis("x")
    given(once, on_kinesis, event)
    consumer = f"{events.STREAM}/consumer/mine:1530559711"
    assert given(once, on_kinesis, changed(event, "Records", 0, "eventSourceARN", to=consumer)) == ([], [])


def test_aggregates_of_the_kpl_are_taken_apart(once):
    payloads, deliveries = given(once, on_kinesis, events.kinesis(THREE, "plain", HASHED))
    assert payloads == [{"id": 1}, {"id": 2}, "plain text", "plain", {"id": 1}, b"\xff\x00"]
    assert [d.raw["kinesis"]["partitionKey"] for d in deliveries] == ["a", "b", "a", "1", "a", "b"]
    assert [d.id for d in deliveries] == [str(events.FIRST + n) for n in (0, 0, 0, 1, 2, 2)]
    assert deliveries[5].raw["kinesis"]["explicitHashKey"] == "340282366920938463463374607431768211455"
    assert deliveries[5].raw["eventID"] == f"{events.SHARD}:{events.FIRST + 2}"
    assert [d.key[2:] for d in deliveries] == [(0,), (1,), (2,), (), (0,), (1,)]
    assert len(keys(once)) == 6


def test_the_kpls_format_is_read_as_the_kpl_writes_it():
    assert user_records(THREE) == [("a", None, b'{"id": 1}'), ("b", None, b'{"id": 2}'), ("a", None, b"plain text")]
    assert user_records(LONG) == [("k" * 200, None, b"x" * 150)]
    assert user_records(EMPTY) == [("a", None, b"")]


@each("data", [b"", THREE[:4], THREE[:20], THREE[:-1], THREE[:-1] + b"x", b"x" + THREE, THREE[4:]])
def test_what_lacks_magic_or_digest_is_no_aggregate(data):
    assert user_records(data) is None


def aggregate(message):
    from hashlib import md5

    return b"\xf3\x89\x9a\xc2" + message + md5(message).digest()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\x1a\x05\x08\x00\x1a\x01x", "names entry 0 of a table of 0"),
        (b"\x0a\x01a\x1a\x05\x08\x01\x1a\x01x", "names entry 1 of a table of 1"),
        (b"\x0a\x01a\x1a\x07\x08\x00\x10\x00\x1a\x01x", "names entry 0 of a table of 0"),
        (b"\x0a\x01a\x1a\x03\x1a\x01x", "names entry None of a table of 1"),
        (b"\x0a\x01a\x1a\x02\x08\x00", "has no data"),
        (b"\x0a\x01a\x1a\x04\x08\x00\x18\x01", "is a number and must be bytes"),
        (b"\x0a\x09a", "ends within a field"),
        (b"\x0a", "ends within a number"),
        (b"\x0a\x80", "ends within a number"),
        (b"\x80" * 11, "more than 64 bits"),
        (b"\x0b\x01a", "wire type 3"),
        (b"\x0a\x01\xff", "utf-8"),
    ],
)
def test_an_aggregate_that_cannot_be_read_is_one_malformed_record(once, message, why):
    with pytest.raises(ValueError, match=why):
        user_records(aggregate(message))
    outcomes = []

    note_outcomes(outcomes.append)

    @on_kinesis(once)
    def handle(payload):
        return None

    answer = handle(events.kinesis("before", aggregate(message), "after"))
    assert answer == {"batchItemFailures": [{"itemIdentifier": str(events.FIRST + 1)}]}
    assert sorted(o.status for o in outcomes) == ["deferred", "done", "malformed"]


def test_fields_that_a_newer_kpl_may_add_are_passed_over():
    extra = b"\x20\x07\x29" + b"8" * 8 + b"\x35" + b"4444" + b"\x3a\x02hi"
    message = extra + b"\x0a\x01a" + b"\x1a\x0c\x08\x00\x1a\x01x\x22\x05\x0a\x03tag"
    assert user_records(aggregate(message)) == [("a", None, b"x")]


def test_dynamodb_gives_plain_values(once):
    image = {
        "text": {"S": "a"},
        "whole": {"N": "-12345678901234567890123456789012345678"},
        "part": {"N": "1.5"},
        "binary": {"B": "AAE="},
        "yes": {"BOOL": True},
        "nothing": {"NULL": True},
        "map": {"M": {"list": {"L": [{"S": "x"}, {"N": "1"}]}}},
        "texts": {"SS": ["a", "b"]},
        "numbers": {"NS": ["1", "2.5"]},
        "binaries": {"BS": ["AAE="]},
    }
    event = {"Records": [events.change_record(1, NewImage=image, OldImage={"text": {"S": "b"}})]}
    payloads, deliveries = given(once, on_dynamodb_stream, event, key="payload.NewImage.whole")
    assert payloads == [
        {
            "eventName": "MODIFY",
            "Keys": {"Id": 1},
            "NewImage": {
                "text": "a",
                "whole": -12345678901234567890123456789012345678,
                "part": Decimal("1.5"),
                "binary": b"\0\1",
                "yes": True,
                "nothing": None,
                "map": {"list": ["x", 1]},
                "texts": {"a", "b"},
                "numbers": {1, Decimal("2.5")},
                "binaries": {b"\0\1"},
            },
            "OldImage": {"text": "b"},
        }
    ]
    assert deliveries[0].raw["dynamodb"]["NewImage"]["part"] == {"N": "1.5"}
    assert keys(once) == ["n:-12345678901234567890123456789012345678"]


def test_dynamodb_keys_by_event_id(once):
    given(once, on_dynamodb_stream, events.dynamodb(2))
    assert keys(once) == ["n:c4ca4238a0b923820dcc509a6f758400", "n:c4ca4238a0b923820dcc509a6f758401"]


@each(
    "value", [{}, {"S": 1}, {"N": "x"}, {"N": 1}, {"B": "?"}, {"X": "1"}, {"S": "a", "N": "1"}, {"L": [1]}, {"M": 1}, 1]
)
def test_a_change_that_is_none_is_malformed(once, value):
    outcomes = []

    note_outcomes(outcomes.append)

    @on_dynamodb_stream(once)
    def handle(change):
        return None

    event = {"Records": [events.change_record(1, NewImage={"x": value}), events.change_record(2)]}
    assert handle(event) == {"batchItemFailures": [{"itemIdentifier": "11100000000000000001"}]}
    assert [o.status for o in outcomes] == ["malformed", "deferred"]


def test_kafka_gives_values_and_keys_by_topic_partition_and_offset(once):
    payloads, deliveries = given(once, on_kafka, events.kafka({0: [{"id": 1}, None], 1: ["text"]}))
    found = {d.id: (d.group, payload) for payload, d in zip(payloads, deliveries, strict=True)}
    assert found == {
        ("mytopic-0", 15): ("mytopic-0", {"id": 1}),
        ("mytopic-0", 16): ("mytopic-0", None),
        ("mytopic-1", 15): ("mytopic-1", "text"),
    }
    cluster = "arn:aws:kafka:us-east-1:123456789012:cluster/Sales/abcd1234-4"
    assert keys(once)[0] == f'n:("{cluster}",mytopic,0,15,1545084650987)'


def test_a_record_of_kafka_with_a_key_in_its_headers_has_that_key(once):
    event = events.kafka({0: [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 3}]})
    records = event["records"]["mytopic-0"]
    for record, text in zip(records, (b"k-1", b"k-1", b"\xff", b""), strict=True):
        record["headers"] = [{"trace": [-61, -92]}, {"Idempotency-Key": list(text)}]
    payloads, deliveries = given(once, on_kafka, event)
    assert payloads == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert deliveries[0].header("trace") == "\u00e4"
    assert "n:k-1" in keys(once)
    assert len(keys(once)) == 3


def test_a_kafka_cluster_of_ones_own_is_known_by_its_servers_in_any_order(once):
    event = events.self_managed_kafka({0: ["x"]})
    _, (delivery,) = given(once, on_kafka, event)
    assert delivery.source == "SelfManagedKafka"
    turned = event | {"bootstrapServers": ",".join(reversed(event["bootstrapServers"].split(",")))}
    assert given(once, on_kafka, turned) == ([], [])  # a replay
    assert len(keys(once)) == 1


def test_sns_gives_the_message_and_keys_by_its_id(once):
    payloads, deliveries = given(once, on_sns, events.sns({"id": 1}))
    assert payloads == [{"id": 1}]
    assert deliveries[0].raw["Sns"]["Subject"] == "TestInvoke"
    assert keys(once) == ["n:95df01b4-ee98-5cb9-9903-4c221d41eb5e"]


def test_eventbridge_gives_the_detail_and_keys_by_the_events_id(once):
    payloads, deliveries = given(once, on_eventbridge, events.eventbridge({"order": 1}))
    assert payloads == [{"order": 1}]
    assert deliveries[0].raw["detail-type"] == "Order placed"
    assert keys(once) == ["n:6a7e8feb-b491-4cf7-a9f1-bf3703467718"]


def test_s3_gives_a_flat_dict_with_the_decoded_key(once):
    payloads, deliveries = given(once, on_s3, events.s3("photos/a+b%281%29%C3%A9.jpg"))
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
    assert deliveries[0].raw["s3"]["object"]["key"] == "photos/a+b%281%29%C3%A9.jpg"


def test_s3_keys_tell_versions_events_and_moments_apart(once):
    records = [
        events.s3_record(),
        events.s3_record(),
        events.s3_record(version=None),
        events.s3_record(version="other"),
        events.s3_record(sequencer="0C0F6F405D6ED209E2"),
        events.s3_record(sequencer=None),
        events.s3_record() | {"eventName": "ObjectTagging:Put"},
    ]
    assert len(given(once, on_s3, {"Records": records})[0]) == 6  # the second is a duplicate of the first
    assert 'n:(pictures,"photos/a b(1).jpg",yd3d4HaWOT2z,"ObjectCreated:Put",0C0F6F405D6ED209E1)' in keys(once)


def test_firehose_gives_the_data_and_keys_by_stream_and_record(once):
    payloads, _ = given(once, on_firehose, events.firehose({"id": 1}, "text", b"\xff"))
    assert payloads == [{"id": 1}, "text", b"\xff"]
    assert keys(once)[0] == (
        'n:("arn:aws:firehose:us-east-2:123456789012:deliverystream/logs",'
        '"49640912821178817833517986466168945147170627572855734274000000")'
    )


def test_an_invocation_gives_the_event_and_keys_by_the_request(once):
    payloads, deliveries = given(once, on_invoke, [1, {"x": 2}])
    assert payloads == [[1, {"x": 2}]]
    assert deliveries[0].raw == [1, {"x": 2}]
    assert keys(once) == [f"n:{events.Context.aws_request_id}"]


def test_rabbitmq_gives_bodies_and_keys_by_message_id(once):
    payloads, deliveries = given(once, on_rabbitmq, events.rabbitmq({"id": 1}, "text", {"id": 3}))
    assert payloads == [{"id": 1}, "text", {"id": 3}]
    assert [delivery.destination for delivery in deliveries] == ["pizzaQueue", "pizzaQueue", "saladQueue"]
    assert (deliveries[0].header("header1"), deliveries[0].header("numberInHeader")) == ("value1", "10")
    assert keys(once) == ["n:m-0", "n:m-1", "n:m-2"]


def test_activemq_gives_bodies_and_keys_by_message_id(once):
    payloads, (first, _) = given(once, on_activemq, events.activemq({"id": 1}, "text"))
    assert payloads == [{"id": 1}, "text"]
    assert (first.destination, first.header("index"), first.header("count")) == ("testQueue", "1", None)
    assert keys(once) == ['n:"ID:b-0"', 'n:"ID:b-1"']


def test_a_rabbitmq_message_has_the_key_that_its_header_says(once):
    headers = {"Idempotency-Key": {"bytes": list(b"order-7")}, "torn": {"bytes": ["x"]}}
    _, (delivery,) = given(once, on_rabbitmq, events.rabbitmq({"id": 1}, headers=headers, messageId=None))
    assert delivery.header("torn") is None
    assert keys(once) == ["n:order-7"]


# --- events of another kind -----------------------------------------------------------------------------------------

WRAPPERS = {
    on_sqs: events.sqs({"id": 1}),
    on_sqs_fifo: events.fifo(("a", {"id": 1})),
    on_kinesis: events.kinesis({"id": 1}),
    on_dynamodb_stream: events.dynamodb(1),
    on_kafka: events.kafka({0: [{"id": 1}]}),
    on_activemq: events.activemq({"id": 1}),
    on_rabbitmq: events.rabbitmq({"id": 1}),
    on_sns: events.sns({"id": 1}),
    on_eventbridge: events.eventbridge({"id": 1}),
    on_s3: events.s3("key"),
    on_firehose: events.firehose({"id": 1}),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("other", [*WRAPPERS.values(), {}, {"Records": None}, {"records": 1}, None, "x", [], 1])
def test_an_event_of_another_source_is_refused_before_anything_runs(once, wrapper, other):
    if other is WRAPPERS[wrapper]:
        return

    @wrapper(once)
    def handle(payload):
        raise AssertionError("ran")

    with pytest.raises(MalformedEvent, match="nothing has run"):
        handle(other)
    assert keys(once) == []


def test_the_error_about_another_source_names_the_right_wrapper(once):
    with pytest.raises(MalformedEvent, match=r"Use onceward\.aws\.on_kinesis"):
        given(once, on_sqs, events.kinesis("x"))
    with pytest.raises(MalformedEvent, match=r"is a FIFO queue.* Use on_sqs_fifo"):
        given(once, on_sqs, events.fifo(("a", "x")))
    with pytest.raises(MalformedEvent, match=r"is a standard queue.* Use on_sqs"):
        given(once, on_sqs_fifo, events.sqs("x"))
    with pytest.raises(MalformedEvent, match="Check what invokes"):
        given(once, on_sqs, changed(events.sqs("x"), "Records", 0, "eventSource", to="aws:codecommit"))
    with pytest.raises(MalformedEvent, match="use on_invoke"):
        given(once, on_eventbridge, {"order": 1})


@pytest.mark.parametrize("wrapper", [w for w, event in WRAPPERS.items() if "Records" in event])
def test_a_record_of_another_source_among_right_ones_is_malformed_alone(once, wrapper):
    foreign = next(
        event for w, event in WRAPPERS.items() if "Records" in event and w not in {wrapper, on_sqs, on_sqs_fifo}
    )
    (right,) = WRAPPERS[wrapper]["Records"]
    (strange,) = foreign["Records"]
    outcomes, payloads = [], []
    note_outcomes(outcomes.append)
    handle = wrapper(once)(payloads.append)
    try:
        handle({"Records": [right, strange]})
    except BatchFailed as error:  # it has no identifier by which this source could be told of it
        outcomes = error.outcomes
    assert len(payloads) == 1
    by_status = {outcome.status: outcome for outcome in outcomes}
    assert set(by_status) == {"done", "malformed"}
    assert by_status["malformed"].record.raw is strange
    assert "Use onceward.aws.on_" in str(by_status["malformed"].error)
    assert len(keys(once)) == 1


def test_a_message_of_another_kind_of_queue_is_reported_alone(once):
    (strange,) = events.fifo(("a", "strange"))["Records"]
    payloads = []
    strange["messageId"] = "strange"
    answer = on_sqs(once)(payloads.append)({"Records": [strange, *events.sqs("x", "y")["Records"]]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "strange"}]}
    assert payloads == ["x", "y"]


@each("wrapper", [on_kinesis, on_dynamodb_stream])
def test_a_time_window_is_refused(once, wrapper):
    with pytest.raises(MalformedEvent, match="TumblingWindowInSeconds"):
        given(once, wrapper, WRAPPERS[wrapper] | {"window": {"start": "a", "end": "b"}, "state": {}})


@each("wrapper", [on_sqs, on_kinesis, on_dynamodb_stream])
def test_an_event_without_records_is_a_success(once, wrapper):
    assert wrapper(once)(lambda payload: None)({"Records": []}) == {"batchItemFailures": []}


# --- single records that cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrapper", "event", "status"),
    [
        (on_sqs, changed(events.sqs("x", "y"), "Records", 0, "body"), "malformed"),
        (on_sqs, changed(events.sqs("x", "y"), "Records", 0, "body", to=1), "malformed"),
        (
            on_kafka,
            changed(events.kafka({0: ["x"], 1: ["y"]}), "records", "mytopic-0", 0, "value", to="?"),
            "malformed",
        ),
        (on_firehose, changed(events.firehose("x", "y"), "records", 0, "data", to="eyJ"), "malformed"),
        (on_firehose, changed(events.firehose("x", "y"), "records", 0, "data"), "malformed"),
    ],
)
def test_a_record_that_cannot_be_read_harms_no_other(once, wrapper, event, status):
    outcomes, ran = [], []

    note_outcomes(outcomes.append)

    @wrapper(once)
    def handle(payload):
        ran.append(payload)
        return payload

    handle(event)
    assert ran == ["y"]
    assert sorted(o.status for o in outcomes) == ["done", status]
    assert isinstance(next(o.error for o in outcomes if not o.ok), MalformedRecord)


@pytest.mark.parametrize(
    ("wrapper", "event"),
    [
        (on_sqs, changed(events.sqs("x", "y"), "Records", 0, "messageId")),
        (on_sqs, changed(events.sqs("x", "y"), "Records", 0, "messageId", to="")),
        (on_sqs, changed(events.sqs("x", "y"), "Records", 0, to="no record")),
        (on_sqs_fifo, changed(events.fifo(("a", "x"), ("b", "y")), "Records", 0, "messageId")),
        (on_kafka, changed(events.kafka({0: ["x"], 1: ["y"]}), "records", "mytopic-0", 0, "offset")),
        (on_kafka, changed(events.kafka({0: ["x"], 1: ["y"]}), "records", "mytopic-0", 0, to=None)),
        (on_firehose, changed(events.firehose("x", "y"), "records", 0, "recordId")),
    ],
)
def test_a_record_without_an_identifier_fails_the_invocation_at_its_end(once, wrapper, event):
    ran = []

    @wrapper(once)
    def handle(payload):
        ran.append(payload)
        return payload

    with pytest.raises(BatchFailed, match=r"identifier|recordId") as caught:
        handle(event)
    assert ran == ["y"]
    assert [o.status for o in caught.value.outcomes] == ["malformed", "done"]
    with pytest.raises(BatchFailed):
        handle(event)
    assert ran == ["y"]


def test_a_stream_record_without_a_number_fails_the_invocation_at_once(once):
    ran = []
    handle = on_kinesis(once, key="payload.id")(lambda payload: ran.append(payload["id"]))
    event = changed(events.kinesis({"id": 1}, {}, {"id": 3}), "Records", 1, "kinesis", "sequenceNumber")
    with pytest.raises(BatchFailed, match="no identifier"):
        handle(event)
    assert ran == [1]
    assert {key: record.status for key, record in once.store.records.items()} == {"n:1": "COMPLETED", "n:3": "RELEASED"}


@pytest.mark.parametrize("name", ["eventSource", "eventSourceARN", "messageAttributes", "attributes", "receiptHandle"])
def test_what_is_not_needed_may_be_missing(once, name):
    event = changed(events.sqs("x"), "Records", 0, name)
    assert given(once, on_sqs, event)[0] == ["x"]


def test_a_fifo_message_without_a_group_is_malformed(once):
    event = changed(events.fifo(("a", "x"), ("a", "y")), "Records", 0, "attributes", "MessageGroupId")
    handle = on_sqs_fifo(once)(lambda payload: None)
    assert handle(event) == {"batchItemFailures": [{"itemIdentifier": "m-0"}]}


# --- what a function takes ------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int
    note: str = ""


class StructOrder(msgspec.Struct):
    id: int


class ModelOrder(pydantic.BaseModel):
    id: int


class StrictOrder(pydantic.BaseModel, strict=True):
    day: dt.date


def as_strict(order: StrictOrder) -> None: ...
def as_dataclass(order: Order) -> None: ...
def as_struct(order: StructOrder) -> None: ...
def as_model(order: ModelOrder) -> None: ...
def as_models(order: list[ModelOrder]) -> None: ...
def as_dict(order: dict[str, int]) -> None: ...
def as_any(order: Any) -> None: ...
def as_objects(order: dict[str, list[object]]) -> None: ...
def as_text(order: str) -> None: ...
def as_bytes(order: bytes) -> None: ...
def as_union(order: dict | str) -> None: ...
def as_limited(order: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...
def as_decimal(order: Decimal) -> None: ...


def converted(function, event, wrapper=on_sqs):
    """Return what ``function`` is given, or the error."""
    seen = []

    def spy(order, /):
        seen.append(order)

    spy.__annotations__ = function.__annotations__
    outcomes = []
    note_outcomes(outcomes.append)
    wrapper(Once(MemoryStore(), name="n"))(spy)(event)
    return outcomes[0].error or seen[0]


@each(
    ("function", "body", "expected"),
    [
        (as_dataclass, '{"id": 1, "note": "x"}', Order(1, "x")),
        (as_struct, '{"id": 1}', StructOrder(1)),
        (as_model, '{"id": 1}', ModelOrder(id=1)),
        (as_models, '[{"id": 1}]', [ModelOrder(id=1)]),
        (as_strict, '{"day": "2026-11-21"}', StrictOrder(day=dt.date(2026, 11, 21))),
        (as_dict, '{"id": 1}', {"id": 1}),
        (as_any, '{"id": 1}', {"id": 1}),
        (as_objects, '{"id": [1, {"a": null}]}', {"id": [1, {"a": None}]}),
        (as_text, '{"id": 1}', '{"id": 1}'),
        (as_text, "12", "12"),
        (as_bytes, '{"id": 1}', b'{"id": 1}'),
        (as_union, '{"id": 1}', {"id": 1}),
        (as_union, "words", "words"),
        (as_limited, "1", 1),
        (as_decimal, "1.10", Decimal("1.10")),
    ],
)
def test_the_payload_is_made_what_the_parameter_is_annotated_with(function, body, expected):
    assert converted(function, events.sqs(body)) == expected
    assert converted(function, events.kinesis(body), on_kinesis) == expected


@each(
    ("function", "body"),
    [
        (as_dataclass, '{"id": "1"}'),
        (as_dataclass, "words"),
        (as_struct, "{}"),
        (as_model, '{"id": "x"}'),
        (as_model, "words"),
        (as_models, '[{"id": "x"}]'),
        (as_dict, "[]"),
        (as_limited, "0"),
    ],
)
def test_a_payload_that_does_not_fit_is_malformed(function, body):
    error = converted(function, events.sqs(body))
    assert isinstance(error, MalformedRecord)
    assert "did not run" in str(error)


def test_parameters_are_filled_by_what_they_are_annotated_with(once):
    seen = []

    def take(*args):
        seen.append(
            [a.data if isinstance(a, Delivery) else "Claim" if isinstance(a, Claim) else type(a).__name__ for a in args]
        )

    def only(delivery: Delivery):
        take(delivery)

    def second(payload, delivery: Delivery):
        take(payload, delivery)

    def first(delivery: Delivery, payload):
        take(delivery, payload)

    def claimed(claim: Claim, payload: dict, delivery: Delivery, more: int = 0):
        take(claim, payload, delivery)

    def keyword(payload, *, claim: Claim):
        take(payload, claim)

    def open_ended(*payload):
        take(*payload)

    def nothing():
        take()

    for function in (only, second, first, claimed, keyword, open_ended, nothing):
        on_sqs(once, name=function.__name__)(function)(events.sqs({"id": 1}))
    payload = {"id": 1}
    assert seen == [
        [payload],
        ["dict", payload],
        [payload, "dict"],
        ["Claim", "dict", payload],
        ["dict", "Claim"],
        ["dict"],
        [],
    ]


def test_function_that_takes_what_nobody_gives_is_refused_when_decorated(once):
    def two(payload, context): ...
    def named(payload, *, context): ...
    def late(payload, flag=True, *, delivery: Delivery = None): ...
    def later(payload, flag=True, delivery: Delivery = None): ...

    for function in (two, named):
        with pytest.raises(TypeError, match="'context', but no value is there for it"):
            on_sqs(once)(function)
    with pytest.raises(TypeError, match="put it right after the payload"):
        on_sqs(once)(late)
    del later


def test_a_type_that_no_payload_can_be_is_refused_when_decorated(once):
    class Thing:
        pass

    def handle(order): ...

    handle.__annotations__["order"] = Thing
    with pytest.raises(TypeError, match=r"a payload cannot be converted to .*Thing"):
        on_sqs(once)(handle)


def test_a_type_that_is_defined_later_is_read_when_it_is_needed(once, monkeypatch):
    seen = []

    @on_sqs(once)
    def handle(order: Late) -> None:  # noqa: F821 - that is the case
        seen.append(order)

    outcomes = []

    note_outcomes(outcomes.append)

    @on_sqs(once, name="never")
    def never(order: Nothing) -> None:
        raise AssertionError

    monkeypatch.setitem(globals(), "Late", Order)
    handle(events.sqs({"id": 1}))
    assert seen == [Order(1)]
    assert never(events.sqs({"id": 1})) == {"batchItemFailures": [{"itemIdentifier": "m-0"}]}
    assert "its annotations name 'Nothing'" in str(outcomes[-1].error)


# --- keys -----------------------------------------------------------------------------------------------------------


def by_payload(order):
    return order.id


def by_delivery(delivery: Delivery):
    return (delivery.id, delivery.data["id"])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("order.id", "n:7"),
        ("[order.note, order.id]", "n:(x,7)"),
        ("order", "n:{id:7,note:x}"),
        (by_payload, "n:7"),
        (by_delivery, "n:(m-0,7)"),
        (lambda order: order.note, "n:x"),
        (operator.attrgetter("id"), "n:7"),
    ],
)
def test_a_key_is_a_jmespath_over_the_payload_or_a_callable(once, key, expected):
    @on_sqs(once, key=key)
    def handle(order: Order) -> None: ...

    handle(events.sqs({"id": 7, "note": "x"}))
    assert keys(once) == [expected]


@each(
    "key",
    [
        "order.missing",
        "[order.id, order.missing]",
        lambda order: order["missing"],
        lambda order: order.missing,
        lambda order: None,
    ],
)
def test_a_key_that_is_missing_is_malformed_and_nothing_runs(once, key):
    outcomes = []

    note_outcomes(outcomes.append)

    @on_sqs(once, key=key)
    def handle(order: dict) -> None:
        raise AssertionError

    handle(events.sqs({"id": 7}, "words"))
    assert [o.status for o in outcomes] == ["malformed"] * 2
    assert isinstance(outcomes[0].error, KeyMissing)
    assert keys(once) == []


def test_a_record_without_what_its_key_is_made_of_is_malformed(once):
    with pytest.raises(KeyMissing, match="give key="):
        on_invoke(once)(lambda event: None)({"id": 1}, None)
    with pytest.raises(KeyMissing, match=r"docs/reference/lambda\.md"):
        on_eventbridge(once)(lambda event: None)(changed(events.eventbridge({}), "id"))


@each("key", ["'constant'", "`1`"])
def test_a_key_that_is_the_same_for_all_is_refused_when_decorated(once, key):
    with pytest.raises(ValueError, match="the same for every input"):
        on_sqs(once, key=key)(lambda payload: None)


def test_keys_and_options_that_are_none_are_refused_when_decorated(once):
    for options, error in (
        ({"key": 7}, TypeError),
        ({"key": "a.["}, ValueError),
        ({"key": "payload[*]"}, ValueError),
        ({"leese": 7}, TypeError),
        ({"lease": -1}, ValueError),
        ({"concurrency": 0}, ValueError),
    ):
        with pytest.raises(error):
            on_sqs(once, **options)(lambda payload: None)
    with pytest.raises(ValueError, match="unwrap='s3'"):
        on_sqs(once, unwrap="s3")
    with pytest.raises(ValueError, match="stop='queue'"):
        on_sqs_fifo(once, stop="queue")
    with pytest.raises(ValueError, match="all_failed='never'"):
        on_kinesis(once, all_failed="never")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"id": 7, "at": NaN}', "NaN at byte 16"),
        ('{"id": 7, "said": "\\ud83d"}', "half of a surrogate pair at byte 19"),
        ('{"id": 7, "id": 8}', "the name 'id' is there twice at byte 10"),
        ("{'id': 7}", "at byte 1"),
        ("", "it is empty"),
        ("id,cents", "at byte 0"),
    ],
)
@pytest.mark.parametrize("key", ["order.id", None])
def test_a_message_that_is_not_quite_json_says_so_and_where(once, caplog, body, why, key):
    @on_sqs(once, key=key)
    def charge(order: dict):
        raise AssertionError("it ran")

    assert charge(events.sqs(body))["batchItemFailures"]
    (record,) = [record for record in caplog.records if why in record.getMessage()]
    assert record.levelname == "ERROR"
    assert "not JSON" in record.getMessage()


MALFORMED = [
    (on_kafka, events.kafka({3: [None]}), "the record topic mytopic, partition 3, offset 15 of aws:kafka: "),
    (on_sqs, events.sqs("x"), "the record m-0 of aws:sqs: "),
    (on_kinesis, events.kinesis("x"), "the record shardId-"),
    (on_dynamodb_stream, events.dynamodb(1), "of aws:dynamodb: "),
    (on_rabbitmq, events.rabbitmq("x", messageId=None), "the record number 1 of the event of aws:rmq: "),
    (on_activemq, events.activemq("x"), "the record ID:"),
]


@pytest.mark.parametrize(("source", "event", "name"), MALFORMED, ids=lambda part: getattr(part, "__name__", None))
def test_each_malformed_record_names_itself_in_its_error_and_in_the_log(once, caplog, source, event, name):
    """Of Kafka it is a tombstone, which has no value that a key path could find."""
    more = {} if source in {on_rabbitmq, on_activemq} else {"partial": False}
    with pytest.raises(BatchFailed) as failed:
        source(once, key="order.id", **more)(lambda order: None)(event)
    assert name in str(failed.value.__cause__)
    assert name.removesuffix(": ") in caplog.text


@pytest.mark.parametrize(
    ("fingerprint", "clashes"),
    [("order.total", True), (True, True), (lambda order: order["total"], True), (None, False)],
)
def test_a_fingerprint_tells_another_input_under_the_same_key(once, fingerprint, clashes):
    handle = on_sqs(once, key="order.id", fingerprint=fingerprint)(lambda order: None)
    handle(events.sqs({"id": 1, "total": 5}))
    answer = handle(events.sqs({"id": 1, "total": 6}))
    assert bool(answer["batchItemFailures"]) is clashes


def test_decoded_json_that_is_too_deep_or_strange_is_text(once):
    deep = "[" * 100_000
    payloads, _ = given(once, on_sqs, events.sqs(deep, "\ud800", "NaN", "{'a': 1}"))
    assert payloads == [deep, "\ud800", "NaN", "{'a': 1}"]
