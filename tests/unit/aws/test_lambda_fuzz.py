"""Whatever stands in an event: it is refused as a whole, or each of its records is done or told of."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_lambda_payloads import WRAPPERS

from observing import note_outcomes
from onceward import KeyMissing, Once, aws
from onceward.stores.memory import MemoryStore
from queues import lambda_events as events
from queues.lambda_events import places

WORDS = st.sampled_from(["aws:sqs", "aws:kinesis", "eyJpZCI6IDF9", "Notification", '{"id": 1}', "", "x.fifo"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("S"), inner, max_size=3),
    max_leaves=6,
)

CASES = [
    *((wrapper, {}, event) for wrapper, event in WRAPPERS.items()),
    (aws.on_sqs, {"unwrap": "sns"}, events.sqs(events.sns_envelope("x", "1"), events.sns_envelope("y", "2"))),
    (aws.on_sqs, {"key": "payload.id"}, events.sqs({"id": 1}, {"id": 2})),
]


@st.composite
def mutated(draw, event):
    """An event of which some parts are removed, replaced, doubled or swapped."""
    event = copy.deepcopy(event)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(event))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(VALUES)
            continue
        inner = event
        for step in path[:-1]:
            inner = inner[step]
        how = draw(st.sampled_from(["remove", "replace", "double", "add"]))
        if how == "remove":
            del inner[path[-1]]
        elif how == "replace":
            inner[path[-1]] = draw(VALUES)
        elif how == "double" and isinstance(inner, list):
            inner.append(copy.deepcopy(inner[path[-1]]))
        elif isinstance(inner, dict):
            inner[draw(st.text(max_size=5))] = draw(VALUES)
    return event


def records(event):
    """The records of an event that was taken."""
    if "detail" in event:
        return [event]
    found = event.get("Records", event.get("records", event.get("rmqMessagesByQueue", event.get("messages"))))
    return [record for part in found.values() for record in part] if isinstance(found, dict) else found


@pytest.mark.slow
@pytest.mark.parametrize(("wrapper", "options", "event"), CASES)
@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_record_of_any_event_is_lost(wrapper, options, event, data):
    event = data.draw(mutated(event))
    outcomes, ran = [], []

    note_outcomes(outcomes.append)

    @wrapper(Once(MemoryStore(), name="n"), **options)
    def handle(payload):
        ran.append(payload)
        return "made"

    try:
        answer = handle(event)
    except aws.MalformedEvent:
        assert ran == []
        assert outcomes == []
        return
    except (aws.BatchFailed, aws.MalformedRecord, KeyMissing):  # the last two of a bus, which sends one event at a time
        assert any(not outcome.ok or getattr(outcome.record, "id", None) is None for outcome in outcomes)
        return
    told = [outcome.record.id for outcome in outcomes if not outcome.ok]
    if wrapper is aws.on_firehose:
        assert [r["recordId"] for r in answer["records"]] == [r["recordId"] for r in records(event)]
        ok = {id(outcome.record.raw): outcome.ok for outcome in outcomes}
        assert [r["result"] == "Ok" for r in answer["records"]] == [ok[id(record)] for record in records(event)]
    elif answer is None:
        assert told == []
    else:
        named = [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]
        named = [(n["partition"], n["offset"]) if isinstance(n, dict) else n for n in named]
        if wrapper in {aws.on_kinesis, aws.on_dynamodb_stream}:
            assert len(named) == bool(told)
            assert set(named) <= set(told)
        else:
            assert sorted(named) == sorted(told)
    handled = {id(outcome.record.raw) for outcome in outcomes}
    if wrapper is not aws.on_kinesis:  # whose aggregates are records of their own
        assert handled == {id(record) for record in records(event)}
