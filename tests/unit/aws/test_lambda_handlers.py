"""Handlers of Lambda's event sources: each record's effect once, the answer that its source expects, and what docs/reference/lambda.md shows."""

import asyncio
import base64
import datetime as dt
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from onceward import Once, aws
from onceward.consumers.delivery import DeliveryOptions
from onceward.core.policy import Options
from places import DOCS
from queues import lambda_events as events
from tables import each

pytestmark = pytest.mark.sampled(once=1)


def statuses(once):
    return {record.key.removeprefix("n:"): record.status for record, _ in once.ledger.records()}


class Missing(LookupError):
    def __bool__(self):
        return False


class Effects(list):
    """A function's effects; it fails for the ids that are in ``failing``."""

    def __init__(self):
        super().__init__()
        self.failing = set()

    def make(self, order):
        if order["id"] in self.failing:
            raise Missing(order["id"])
        self.append(order["id"])
        return {"made": order["id"]}


@pytest.fixture
def effects():
    return Effects()


def failed(answer):
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def orders(*ids):
    return [{"id": one} for one in ids]


def test_two_lambda_functions_with_one_ledger_share_no_key(effects, monkeypatch):
    once = Once("memory:")
    for name in ("charge", "ship"):
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", name)
        aws.on_sqs(once, key="order.id")(effects.make)(events.sqs({"id": 7}))
    assert effects == [7, 7]


def test_an_event_of_which_all_failed_is_reported_or_raised_if_the_mapping_takes_no_report(once, effects):
    effects.failing = {1, 2}
    once.acquire(3, name="n")
    once.acquire(4, name="n").park("broken")
    event = events.sqs(*orders(1, 2, 3, 4))
    assert failed(aws.on_sqs(once, key="order.id")(effects.make)(event)) == ["m-0", "m-1", "m-2", "m-3"]
    raising = aws.on_sqs(once, key="order.id", partial=False)(effects.make)
    with pytest.raises(aws.BatchFailed, match=r"4 of 4 record\(s\)") as caught:
        raising(event)
    assert isinstance(caught.value.__cause__, LookupError)
    assert [outcome.status for outcome in caught.value.outcomes] == ["failed", "failed", "busy", "parked"]


def test_what_cannot_begin_in_time_goes_back_unclaimed(once, effects):
    late = events.Context(millis=0)
    handle = aws.on_sqs(once, key="order.id")(effects.make)
    assert failed(handle(events.sqs(*orders(1, 2)), late)) == ["m-0", "m-1"]
    with pytest.raises(aws.BatchFailed, match=r"no time left.*A lease needs as much time as the handler takes"):
        aws.on_invoke(once, name="jobs")(effects.make)({}, late)
    assert effects == []
    assert statuses(once) == {}

    for number, context in enumerate((None, object())):  # which tell of no limit
        assert failed(handle(events.sqs({"id": number}), context)) == []
    assert effects == [0, 1]


def test_a_fifo_queue_stops_at_the_first_failure_of_the_group(once, effects):
    handle = aws.on_sqs_fifo(once, key="order.id")(effects.make)
    event = events.fifo(*zip("aabab", orders(1, 2, 3, 4, 5), strict=True))
    effects.failing = {2}
    assert failed(handle(event)) == ["m-1", "m-3"]
    assert sorted(effects) == [1, 3, 5]
    assert {"IN_PROGRESS"} & set(statuses(once).values()) == set()
    effects.failing = set()
    assert failed(handle(event)) == []
    assert [one for one in effects if one in {1, 2, 4}] == [1, 2, 4]
    assert [one for one in effects if one in {3, 5}] == [3, 5]


def test_a_stream_answers_with_its_first_failure_and_claims_no_more(once, effects):
    handle = aws.on_kinesis(once, key="order.id")(effects.make)
    event = events.kinesis(*orders(0, 1, 2, 3))
    effects.failing = {1, 3}
    assert handle(event) == {"batchItemFailures": [{"itemIdentifier": str(events.FIRST + 1)}]}
    assert effects == [0]
    assert {"IN_PROGRESS"} & set(statuses(once).values()) == set()
    effects.failing = set()
    event["Records"] = event["Records"][1:]  # Lambda begins with what was named
    assert handle(event) == {"batchItemFailures": []}
    assert effects == [0, 1, 2, 3]


def test_kafka_answers_with_partition_and_offset_and_keeps_order(once, effects):
    effects.failing = {2}
    handle = aws.on_kafka(once, key="order.id")(effects.make)
    event = events.kafka({0: orders(1, 2, 3), 1: orders(4, 5)})
    assert failed(handle(event)) == [{"partition": "mytopic-0", "offset": offset} for offset in (16, 17)]
    assert sorted(effects) == [1, 4, 5]


ONE = {"id": 1}


@pytest.mark.parametrize(
    ("wrapper", "event", "error"),
    [
        (aws.on_sns, events.sns(ONE), aws.BatchFailed),
        (aws.on_eventbridge, events.eventbridge(ONE), Missing),
        (aws.on_rabbitmq, events.rabbitmq(ONE), aws.BatchFailed),
        (partial(aws.on_sqs, partial=False), events.sqs(ONE), aws.BatchFailed),
        (partial(aws.on_kafka, partial=False), events.self_managed_kafka({0: [ONE]}), aws.BatchFailed),
    ],
)
def test_where_nothing_can_be_answered_a_failure_fails_the_invocation(once, effects, caplog, wrapper, event, error):
    effects.failing = {1}
    handle = wrapper(once)(lambda payload: effects.make(ONE))
    with pytest.raises(error, match="1") as caught:
        handle(event)
    assert Missing in {type(caught.value), type(caught.value.__cause__)}
    assert caplog.records[0].exc_info[0] is Missing
    effects.failing = set()
    for _ in range(2):
        assert handle(event) in (None, {"batchItemFailures": []})
    assert effects == [1]


@each(
    ("wrapper", "event", "answer"),
    [
        (aws.on_sqs, events.sqs(ONE), {"batchItemFailures": []}),
        (aws.on_eventbridge, events.eventbridge(ONE), None),
        (aws.on_firehose, events.firehose("x"), "ProcessingFailed"),
    ],
)
def test_an_exception_that_is_the_outcome_ends_the_retries(once, wrapper, event, answer):
    runs = []

    @wrapper(once, final=(LookupError,))
    def handle(payload):
        runs.append(payload)
        raise LookupError

    for _ in range(2):
        told = handle(event)
        assert (told["records"][0]["result"] if wrapper is aws.on_firehose else told) == answer
    assert len(runs) == 1


def test_firehose_gets_new_data_drops_and_failures(once):
    runs = []

    @aws.on_firehose(once)
    def transform(payload):
        runs.append(payload)
        made = {"json": {"made": 1}, "text": "é", "bytes": b"\xff", "drop": aws.DROPPED, "none": None, "odd": object}
        return made[payload]

    event = events.firehose("json", "text", "bytes", "drop", "none", "missing")
    answer = transform(event)
    assert [r["recordId"] for r in answer["records"]] == [r["recordId"] for r in event["records"]]
    results = [(r["result"], base64.b64decode(r["data"])) for r in answer["records"]]
    assert results == [
        ("Ok", b'{"made":1}'),
        ("Ok", "é".encode()),
        ("Ok", b"\xff"),
        ("Dropped", b"drop"),
        ("ProcessingFailed", b"none"),
        ("ProcessingFailed", b"missing"),
    ]
    assert transform(event) == answer
    assert len(runs) == 7  # only what raised has run again


@dataclass
class Receipt:
    id: int
    when: dt.datetime


def test_an_invocation_is_answered_in_jsons_types_now_and_again(once):
    runs = []

    @aws.on_invoke(once, key="order.id", final=(LookupError,))
    def handle(order: dict) -> Receipt:
        runs.append(order)
        if order["id"] == 2:
            raise LookupError("declined")
        return Receipt(order["id"], dt.datetime(2026, 11, 21, tzinfo=dt.UTC))

    for _ in range(2):
        assert handle({"id": 1}, events.Context()) == {"id": 1, "when": "2026-11-21T00:00:00Z"}
        with pytest.raises(LookupError, match="declined"):
            handle({"id": 2}, events.Context())
    assert len(runs) == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_coroutine_functions_run_in_one_loop_that_outlives_the_invocation(once, effects):
    loops = set()

    @aws.on_sqs(once, key="order.id")
    async def handle(order):
        loops.add(asyncio.get_running_loop())
        return effects.make(order)

    effects.failing = {2}
    assert failed(handle(events.sqs(*orders(1, 2)))) == ["m-1"]
    assert failed(handle(events.sqs(*orders(1, 3)))) == []
    assert effects == [1, 3]
    assert len(loops) == 1
    child = os.fork()
    if child == 0:
        try:
            handle(events.sqs(*orders(4)))
        finally:
            os._exit(len(loops))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2  # the child has its own
    assert not loops.pop().is_closed()


async def test_a_handler_of_coroutines_cannot_be_called_within_a_loop(once):
    @aws.on_sqs(once)
    async def handle(payload):
        raise AssertionError

    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        handle(events.sqs("a"))


def test_a_handler_called_out_of_another_ones_thread_does_not_wait_for_it(once):
    @aws.on_invoke(once, key="event.inner")
    async def inner(event):
        return threading.current_thread() is threading.main_thread()

    @aws.on_invoke(once, key="event.outer")
    async def outer(event):
        return await asyncio.get_running_loop().run_in_executor(None, inner, event, events.Context())

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(outer, {"inner": 1, "outer": 2}, events.Context()).result(60) is False


@each("before", [[], [("a", {"id": "bad"})]])
def test_a_duplicate_of_a_message_that_failed_or_was_not_begun_stops_its_own_group_too(once, effects, before):
    effects.failing = {1, "bad"}
    sent = [*before, ("a", {"id": 1}), ("b", {"id": 1}), ("b", {"id": 2})]
    answer = aws.on_sqs_fifo(once, key="order.id", name=f"n{len(before)}")(effects.make)(events.fifo(*sent))
    assert failed(answer) == [f"m-{number}" for number in range(len(sent))]
    assert effects == []


TEXT = (DOCS / "reference" / "lambda.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?<!-->\n)```python\n(.*?)```", TEXT, re.DOTALL)  # not those that are marked "not run"

CALLS = {
    0: {"handler": (events.sqs({"order": {"id": 1}}), {"batchItemFailures": []})},
    1: {"handler": (events.sqs({"id": "a", "total": 5}, {}), {"batchItemFailures": [{"itemIdentifier": "m-1"}]})},
    2: {
        "clicks": (events.kinesis({"page": "/"}), {"batchItemFailures": []}),
        "thumbnails": (events.s3("a"), None),
        "invoice": ({"customer": 1, "month": 2}, {"number": "1-2"}),
    },
    3: {"charge": ({"id": 1}, "charged and mailed")},
}


@each("number", range(len(EXAMPLES)))
def test_the_examples_run(number):
    space = {"__name__": f"example_{number}"}
    source = EXAMPLES[number].replace("dynamodb://orders-ledger?region=eu-west-1", "memory:")
    assert "dynamodb:" not in source
    exec(source, space)
    for name, (event, answer) in CALLS[number].items():
        for _ in range(2):
            assert space[name](event, events.Context()) == answer


def test_every_setting_is_told_of():
    own = set(DeliveryOptions.__annotations__) - set(Options.__annotations__)
    assert [name for name in own if f"| `{name}` |" not in TEXT] == []
