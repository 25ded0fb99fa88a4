"""What functions take of an event, which key it has, and what is said of payloads that do not fit."""

from __future__ import annotations

import datetime as dt
import operator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pydantic
import pytest
from test_lambda_reading import THREE

from observing import note_outcomes
from onceward import Claim, KeyMissing, Once, aws
from onceward.stores.memory import MemoryStore
from queues import lambda_events as events
from queues.lambda_events import given, keys, refusing
from tables import each

pytestmark = pytest.mark.sampled(other=2)

WRAPPERS = {
    aws.on_sqs: events.sqs({"id": 1}, "x", {"id": 3}),
    aws.on_sqs_fifo: events.fifo(("a", "x"), ("b", "y"), ("a", "z")),
    aws.on_kinesis: events.kinesis({"id": 1}, THREE, "x"),
    aws.on_dynamodb_stream: events.dynamodb(3),
    aws.on_kafka: events.kafka({0: ["x", "y"], 1: ["z"]}),
    aws.on_activemq: events.activemq("x", {"id": 2}),
    aws.on_rabbitmq: events.rabbitmq("x", {"id": 2}),
    aws.on_sns: events.sns("x"),
    aws.on_eventbridge: events.eventbridge({"id": 1}),
    aws.on_s3: events.s3("a", "b"),
    aws.on_firehose: events.firehose("x", "y"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_event_of_another_source_is_refused_before_anything_runs(once, wrapper):
    for other in [*WRAPPERS.values(), {}, {"Records": None}, {"records": 1}, None, "x", [], 1]:
        if other is not WRAPPERS[wrapper]:
            with pytest.raises(aws.MalformedEvent, match="nothing has run"):
                wrapper(once, name="n")(refusing)(other)
    assert keys(once) == []


def test_the_error_about_another_source_names_it(once):
    with pytest.raises(aws.MalformedEvent, match="was given a record of 'aws:kinesis'"):
        given(once, aws.on_sqs, events.kinesis("x"))
    with pytest.raises(aws.MalformedEvent, match=r"is a FIFO queue.* Use on_sqs_fifo"):
        given(once, aws.on_sqs, events.fifo(("a", "x")))
    with pytest.raises(aws.MalformedEvent, match=r"is a standard queue.* Use on_sqs"):
        given(once, aws.on_sqs_fifo, events.sqs("x"))
    with pytest.raises(aws.MalformedEvent, match="use on_invoke"):
        given(once, aws.on_eventbridge, {"order": 1})


def test_a_record_of_another_source_among_right_ones_is_malformed_alone(once, outcomes):
    right, strange = WRAPPERS[aws.on_sqs]["Records"][0], WRAPPERS[aws.on_kinesis]["Records"][0]
    payloads = []
    with pytest.raises(aws.BatchFailed):  # it has no identifier by which the queue could be told of it
        aws.on_sqs(once)(payloads.append)({"Records": [right, strange]})
    assert payloads == [{"id": 1}]
    by_status = {outcome.status: outcome for outcome in outcomes}
    assert set(by_status) == {"done", "malformed"}
    assert by_status["malformed"].record.raw is strange
    assert "given a record of 'aws:kinesis'" in str(by_status["malformed"].error)
    assert len(keys(once)) == 1


def test_a_time_window_is_refused_and_an_event_without_records_is_a_success(once):
    for wrapper in (aws.on_kinesis, aws.on_dynamodb_stream):
        with pytest.raises(aws.MalformedEvent, match="TumblingWindowInSeconds"):
            given(once, wrapper, WRAPPERS[wrapper] | {"window": {"start": "a", "end": "b"}, "state": {}})
    for wrapper in (aws.on_sqs, aws.on_kinesis, aws.on_dynamodb_stream):
        assert wrapper(once)(lambda payload: None)({"Records": []}) == {"batchItemFailures": []}


@dataclass
class Order:
    id: int
    note: str = ""


class ModelOrder(pydantic.BaseModel):
    id: int


class StrictOrder(pydantic.BaseModel, strict=True):
    day: dt.date


LIMITED = Annotated[int, msgspec.Meta(ge=1)]


def converted(annotation, event, wrapper=aws.on_sqs):
    """Return what a function is given whose payload has the annotation, or the error."""
    seen, outcomes = [], []
    note_outcomes(outcomes.append)

    def spy(order, /):
        seen.append(order)

    spy.__annotations__["order"] = annotation
    wrapper(Once(MemoryStore(), name="n"))(spy)(event)
    return outcomes[0].error or seen[0]


@each(
    ("annotation", "body", "expected"),
    [
        (Order, '{"id": 1, "note": "x"}', Order(1, "x")),
        (ModelOrder, '{"id": 1}', ModelOrder(id=1)),
        (StrictOrder, '{"day": "2026-11-21"}', StrictOrder(day=dt.date(2026, 11, 21))),
        (str, '{"id": 1}', '{"id": 1}'),
        (bytes, '{"id": 1}', b'{"id": 1}'),
        (dict | str, "words", "words"),
        (LIMITED, "1", 1),
        (Order, "words", None),
        (ModelOrder, '{"id": "x"}', None),
        (LIMITED, "0", None),
    ],
)
def test_the_payload_is_made_what_the_parameter_is_annotated_with_or_malformed(annotation, body, expected):
    made = converted(annotation, events.sqs(body))
    if expected is None:
        assert isinstance(made, aws.MalformedRecord)
        assert "did not run" in str(made)
    else:
        assert made == expected


def test_parameters_are_filled_by_what_they_are_annotated_with(once):
    seen = []

    def take(*args):
        seen.append([type(arg).__name__ for arg in args])

    def only(delivery: aws.Delivery):
        told = (delivery.id, delivery.source, delivery.body, delivery.data)
        assert told == ("m-0", "aws:sqs", '{"id": 1}', {"id": 1})
        take(delivery)

    def claimed(claim: Claim, payload: dict, delivery: aws.Delivery, more: int = 0):
        take(claim, payload, delivery)

    def keyword(payload, *, claim: Claim):
        take(payload, claim)

    def nothing():
        take()

    for function in (only, claimed, keyword, nothing):
        aws.on_sqs(once, name=function.__name__)(function)(events.sqs({"id": 1}))
    claim = seen[1][0]
    assert seen == [["Delivery"], [claim, "dict", "Delivery"], ["dict", claim], []]


def test_a_function_that_takes_what_nobody_gives_is_refused_when_decorated(once):
    def two(payload, context): ...
    def late(payload, flag=True, *, delivery: aws.Delivery = None): ...
    def strange(payload): ...
    def unknown(payload): ...

    unknown.__annotations__["payload"] = "Nowhere"
    strange.__annotations__["payload"] = type("Thing", (), {})
    for function, says in (
        (two, "'context', but no value is there for it"),
        (late, "put it right after the payload"),
        (strange, r"a payload cannot be converted to .*Thing"),
        (unknown, "name 'Nowhere', which is not defined"),
    ):
        with pytest.raises(TypeError, match=says):
            aws.on_sqs(once)(function)


def by_delivery(delivery: aws.Delivery):
    return (delivery.id, delivery.data["id"])


@pytest.mark.parametrize(
    ("key", "expected"),
    [("[order.note, order.id]", "n:(x,7)"), (by_delivery, "n:(m-0,7)"), (operator.attrgetter("id"), "n:7")],
)
def test_a_key_is_a_jmespath_over_the_payload_or_a_callable(once, key, expected):
    @aws.on_sqs(once, key=key)
    def handle(order: Order) -> None: ...

    handle(events.sqs({"id": 7, "note": "x"}))
    assert keys(once) == [expected]


def test_a_key_that_is_missing_is_malformed_and_nothing_runs(once, outcomes):
    for key in ("payload.missing", lambda payload: None):
        aws.on_sqs(once, key=key, name="n")(refusing)(events.sqs({"id": 7}, "words"))
    assert [o.status for o in outcomes] == ["malformed"] * 4
    assert isinstance(outcomes[0].error, KeyMissing)
    with pytest.raises(KeyMissing, match="give key="):
        aws.on_invoke(once)(refusing)({"id": 1}, None)
    assert keys(once) == []


def test_keys_and_options_that_are_none_are_refused_when_decorated(once):
    for options, error in (({"key": 7}, TypeError), ({"leese": 7}, TypeError), ({"concurrency": 0}, ValueError)):
        with pytest.raises(error):
            aws.on_sqs(once, **options)(lambda payload: None)
    with pytest.raises(ValueError, match="unwrap='"):
        aws.on_sqs(once, unwrap="s3")


def test_a_message_that_is_not_quite_json_says_so_and_where(once, caplog):
    for body, why in (('{"id": 7, "at": NaN}', "(byte 16)"), ("id,cents", "(byte 0)"), ("", "it is empty")):
        caplog.clear()
        assert aws.on_sqs(once, key="payload.id", name="n")(refusing)(events.sqs(body))["batchItemFailures"]
        assert "not JSON" in caplog.text
        assert why in caplog.text


@each(
    ("source", "event", "name"),
    [
        (aws.on_kafka, events.kafka({3: [None]}), "the record topic mytopic, partition 3, offset 15 of aws:kafka: "),
        (aws.on_sqs, events.sqs("x"), "the record m-0 of aws:sqs: "),
        (aws.on_kinesis, events.kinesis("x"), "the record shardId-"),
        (aws.on_rabbitmq, events.rabbitmq("x", messageId=None), "the record number 1 of the event of aws:rmq: "),
    ],
)
def test_each_malformed_record_names_itself_in_its_error_and_in_the_log(once, caplog, source, event, name):
    """Of Kafka it is a tombstone, which has no value that a key path could find."""
    more = {} if source is aws.on_rabbitmq else {"partial": False}
    with pytest.raises(aws.BatchFailed) as failed:
        source(once, key="order.id", **more)(lambda order: None)(event)
    assert name in str(failed.value.__cause__)
    assert name.removesuffix(": ") in caplog.text


def test_decoded_json_that_is_too_deep_or_strange_is_text(once):
    deep = "[" * 100_000
    payloads, _ = given(once, aws.on_sqs, events.sqs(deep, "\ud800", "NaN", "{'a': 1}"))
    assert payloads == [deep, "\ud800", "NaN", "{'a': 1}"]
