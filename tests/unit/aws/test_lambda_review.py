"""What a review of the handlers for Lambda's event sources found."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

import lambda_events as events
from onceward import Once
from onceward.aws import on_invoke, on_kinesis, on_sqs, on_sqs_fifo

TENANT = ContextVar("tenant")


@pytest.fixture
def once(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n")
    yield once
    once.close()


# --- the event loop of coroutine functions --------------------------------------------------------------------------


def test_a_handler_that_is_called_out_of_another_ones_thread_does_not_wait_for_it(once):
    @on_invoke(once, key="event.inner")
    async def inner(event):
        return threading.current_thread() is threading.main_thread()

    @on_invoke(once, key="event.outer")
    async def outer(event):
        return await asyncio.to_thread(inner, event, events.Context())

    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(outer({"inner": 1, "outer": 2}, events.Context())), daemon=True
    )
    thread.start()
    thread.join(10)
    assert answers == [False]


def test_each_invocation_of_a_coroutine_function_has_the_context_of_its_own_caller(once):
    @on_invoke(once, key="event.id")
    async def tenant(event):
        found = TENANT.get()
        TENANT.set("left behind")
        return found

    answers = []
    for name in ("one", "two"):
        TENANT.set(name)
        answers.append(tenant({"id": name}))
    assert answers == ["one", "two"]


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [("a", {"id": "bad"})]], ids=["that failed", "that was not begun"])
def test_a_duplicate_of_another_groups_message_stops_its_own_group_too(once, before):
    made = []

    @on_sqs_fifo(once, key="order.id")
    def handle(order):
        if order["id"] != 2:
            raise ValueError("bad")
        made.append(2)

    sent = [*before, ("a", {"id": 1}), ("b", {"id": 1}), ("b", {"id": 2})]
    failed = [one["itemIdentifier"] for one in handle(events.fifo(*sent))["batchItemFailures"]]
    assert failed == [f"m-{number}" for number in range(len(sent))]
    assert made == []


# --- keys that somebody else has said ---------------------------------------------------------------------------------


def test_a_message_under_a_forged_key_does_not_pass_for_the_real_one_when_inputs_are_compared(once):
    made = []
    handle = on_sqs(once, fingerprint=True)(made.append)
    forged = events.sqs_record("forged", {"id": 0})
    forged["messageAttributes"] = {"onceward-key": {"stringValue": "real", "dataType": "String"}}
    assert handle({"Records": [forged]}) == {"batchItemFailures": []}
    answer = handle({"Records": [events.sqs_record("real", {"id": 42})]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "real"}]}  # to be looked at, and not lost
    assert made == [{"id": 0}]


def test_another_input_under_the_key_of_a_record_before_it_stops_the_shard(once):
    made = []
    handle = on_kinesis(once, key="order.id", fingerprint=True)(lambda order: made.append((order["id"], order["v"])))
    answer = handle(events.kinesis({"id": 1, "v": 1}, {"id": 1, "v": 2}, {"id": 2, "v": 1}))
    assert answer == {"batchItemFailures": [{"itemIdentifier": str(events.FIRST + 1)}]}
    assert made == [(1, 1)]
