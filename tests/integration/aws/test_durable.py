"""Durable functions of AWS Lambda, by AWS's own SDK and its test runner: a suspension is no end, and another execution waits outside."""

import json
from types import SimpleNamespace

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python.exceptions import InvocationError
from aws_durable_execution_sdk_python.lambda_service import InvocationStatus
from aws_durable_execution_sdk_python_testing.runner import DurableFunctionTestRunner

from onceward import Once
from onceward.aws import on_invoke
from printed.pages import run as run_page
from waiting import until

pytestmark = pytest.mark.sampled(face=1)

EVENT = json.dumps({"order": "o-1"})


@pytest.fixture
def once(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="orders")
    yield once
    once.close()


def run(handler, name="first", event=EVENT):
    with DurableFunctionTestRunner(handler, poll_interval=0.01) as runner:
        loop = runner._scheduler._loop  # which the runner stops, and leaves to the garbage collector
        result = runner.run(input=event, execution_name=name, execution_timeout=60)
    until(lambda: not loop.is_running())
    loop.close()
    return result


def record(once):
    ((record, _),) = once.ledger.records()
    return record


def faces(once, body):
    """The two ways to guard a durable function."""

    @durable_execution
    @once(key="event.order")
    def guarded(event, context: DurableContext):
        return body(event, context)

    @durable_execution
    @on_invoke(once, key="event.order", name="orders")
    def invoked(event, context):
        return body(event, context)

    return {"once": guarded, "on_invoke": invoked}


both = pytest.mark.parametrize("face", ["once", "on_invoke"])


@both
def test_a_suspended_execution_goes_on_with_its_claim(once, face):
    runs, effects, fences = [], [], []

    def body(event, context):
        runs.append(event["order"])
        context.step(lambda _: effects.append("charged"), name="charge")
        fences.append(record(once).fence)
        assert record(once).lease_until - record(once).updated_at > 300 * 86400
        context.wait(Duration.from_days(3), name="settle")
        context.step(lambda _: effects.append("shipped"), name="ship")
        return "done"

    handler = faces(once, body)[face]
    result = run(handler)
    assert (result.status, json.loads(result.result)) == (InvocationStatus.SUCCEEDED, "done")
    assert (effects, len(runs) > 1, len(set(fences))) == (["charged", "shipped"], True, 1)
    assert (record(once).status, record(once).attempts) == ("COMPLETED", 1)
    again = run(handler, "second")
    assert (json.loads(again.result), effects) == ("done", ["charged", "shipped"])


@both
def test_another_execution_with_the_key_is_refused_while_the_first_is_suspended(once, face):
    others, handlers = [], {}

    def body(event, context):
        if not others:
            others.append(None)
            others[0] = run(handlers[face], "second")
        context.wait(Duration.from_seconds(10))
        return "first"

    handlers.update(faces(once, body))
    assert json.loads(run(handlers[face]).result) == "first"
    assert others[0].status is InvocationStatus.FAILED
    assert "Busy" in str(others[0].error.type)


def test_an_execution_that_lambda_invokes_again_after_a_crash_goes_on(once):
    effects, crashes = [], []

    def body(event, context):
        context.step(lambda _: effects.append("charged"), name="charge")
        if not crashes:
            crashes.append(1)
            raise InvocationError("the service was away")  # Lambda invokes the execution again
        return "done"

    assert json.loads(run(faces(once, body)["once"]).result) == "done"
    assert effects == ["charged"]
    assert (record(once).status, record(once).attempts) == ("COMPLETED", 1)


def test_the_function_of_the_page_charges_an_event_that_comes_twice_once(tmp_path):
    charged = []
    bank = SimpleNamespace(charge=lambda order, key: charged.append(key) or f"receipt of {order}")
    url = f"sqlite:///{tmp_path}/ledger.db"
    page = {"dynamodb://orders-ledger?region=eu-west-1": url}
    names = run_page("docs/reference/lambda.md", {"bank": bank}, page, "Durable functions")
    answers = [json.loads(run(names["handler"], name=name).result) for name in ("first", "second")]
    assert answers == ["o-1 is shipped, receipt of o-1"] * 2
    assert len(charged) == 1
    names["once"].close()
