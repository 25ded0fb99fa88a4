"""Durable functions of AWS Lambda, by AWS's own SDK and its test runner: a suspension is no end, and another execution waits outside."""

import asyncio
import gc
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python.exceptions import InvocationError
from aws_durable_execution_sdk_python.lambda_service import InvocationStatus
from aws_durable_execution_sdk_python_testing.runner import DurableFunctionTestRunner
from botocore.exceptions import ClientError

from fixtures import closing_fixture
from onceward import Busy, Claim, Made, Once, current
from onceward.aws import on_invoke
from onceward.claim.guard import Guard
from onceward.errors import StoreError
from printed.pages import run as run_page
from waiting import until

pytestmark = pytest.mark.sampled(face=1)

EVENT = json.dumps({"order": "o-1"})
# What Lambda passes to a run, as the SDK reads it.
STATE = {
    "DurableExecutionArn": "arn:first/e",
    "CheckpointToken": "t",
    "InitialExecutionState": {
        "Operations": [
            {
                "Id": "e",
                "Type": "EXECUTION",
                "Status": "STARTED",
                "StartTimestamp": 1,
                "ExecutionDetails": {"InputPayload": EVENT},
            }
        ]
    },
}
LAMBDA = SimpleNamespace(
    aws_request_id="r",
    get_remaining_time_in_millis=lambda: 60_000,
    invoked_function_arn="a",
    identity=None,
    client_context=None,
    tenant_id=None,
    **dict.fromkeys(
        ("function_name", "function_version", "memory_limit_in_mb", "log_group_name", "log_stream_name"), ""
    ),
)


class _Killed(BaseException):
    """Ends a run at once."""


class _Refusing:
    """The service, which takes no checkpoint."""

    def checkpoint_durable_execution(self, **_):
        meta = {"HTTPStatusCode": 400}
        said = {"Code": "ValidationException", "Message": "the payload is too large"}
        raise ClientError({"Error": said, "ResponseMetadata": meta}, "CheckpointDurableExecution")


once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db", name="orders"))


def run(handler, name="first", event=EVENT):
    with DurableFunctionTestRunner(handler, poll_interval=0.01) as runner:
        loop = runner._scheduler._loop  # which the runner stops, and leaves to the garbage collector
        result = runner.run(input=event, execution_name=name, execution_timeout=60)
    until(lambda: not loop.is_running())
    loop.close()
    return result


@pytest.fixture
def cuts(once, monkeypatch):
    """The errors of the next claims."""
    errors, insert = [], once.store.insert

    def cut(write):
        if errors:
            raise errors.pop()
        return (yield from insert(write))

    monkeypatch.setattr(once.store, "insert", cut)
    return errors


def record(once):
    ((record, _),) = once.ledger.records()
    return record


def faces(once, body, **client):
    """The two ways to guard a durable function."""

    @durable_execution(**client)
    @once(key="event.order")
    def guarded(event, context: DurableContext):
        return body(event, context)

    @durable_execution(**client)
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
    assert (effects, len(runs) > 1, sorted(set(fences))) == (["charged", "shipped"], True, fences)
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


@pytest.mark.parametrize("guard", [lambda once: once(key="order"), lambda once: on_invoke(once, key="order")])
def test_a_second_thread_of_a_run_is_a_duplicate(once, guard):
    effects = []
    context = SimpleNamespace(execution_context=SimpleNamespace(durable_execution_arn="arn:first"))

    @guard(once)
    def charge(order, context):
        effects.append(order)
        if len(effects) == 1:
            with ThreadPoolExecutor() as pool:
                assert isinstance(pool.submit(charge, order, context).exception(), Busy)
        return "paid"

    assert (charge(7, context), charge(7, context), effects) == ("paid", "paid", [7])


@both
def test_a_sdk_that_does_not_say_enough_is_refused_before_anything_runs(once, face, monkeypatch):
    monkeypatch.delattr(InvocationError, "is_retryable")
    result = run(faces(once, pytest.fail)[face])
    assert "install 1.5 or newer" in result.error.message
    assert list(once.ledger.records()) == []


def test_the_guards_of_functions_that_are_gone_are_gone_too(once):
    context = SimpleNamespace(execution_context=SimpleNamespace(durable_execution_arn="arn:first"))
    guards = lambda: gc.collect() * 0 + sum(type(one) is Guard for one in gc.get_objects())
    before = guards()
    for number in range(9):
        once(key="n", name="n")(lambda n, context: 0)(number, context)
    assert guards() < before + 9


def test_a_run_that_was_given_up_does_not_end_the_claim_of_the_next_one(once):
    fences = []
    a_run = lambda: SimpleNamespace(execution_context=SimpleNamespace(durable_execution_arn="arn:first"))

    @once(key="order")
    def charge(order, context, claim: Claim):
        fences.append(claim.fence)
        if len(fences) == 2:
            raise _Killed
        with ThreadPoolExecutor() as pool:
            assert isinstance(pool.submit(charge, order, a_run()).exception(), _Killed)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        charge(7, a_run())
    assert (record(once).status, record(once).fence) == ("IN_PROGRESS", fences[1])


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


@pytest.mark.parametrize("cut", [0, 1])  # connections that were cut while the function slept
def test_a_step_of_a_run_that_was_killed_is_asked_for_and_not_made_again(once, cuts, cut):
    charges, asked = [], []

    def charge():
        charges.append("o-1")
        if len(charges) == 1:
            raise _Killed  # as by the function's timeout: nothing is recorded
        return "receipt"

    def find(key):
        asked.append(key)
        return Made("receipt")

    def body(event, context):
        return current().step("charge", charge, on_lapse=find)

    handler = faces(once, body, boto3_client=SimpleNamespace())["once"]
    with pytest.raises(_Killed):
        handler(STATE, LAMBDA)
    fence = record(once).fence
    cuts += [StoreError("cut", transient=True)] * cut
    assert json.loads(handler(STATE, LAMBDA)["Result"]) == "receipt"
    assert record(once).fence > fence
    assert (charges, len(asked), record(once).attempts) == (["o-1"], 1, 1)


def test_a_run_that_cannot_claim_lets_lambda_invoke_the_execution_again(once, cuts, monkeypatch):
    monkeypatch.setattr("onceward.core.steps.CLAIM_PATIENCE", 0)
    handler = faces(once, lambda event, context: "done", boto3_client=SimpleNamespace())["once"]
    cuts += [StoreError("away", transient=True)] * 99
    with pytest.raises(InvocationError, match="away"):
        handler(STATE, LAMBDA)
    cuts.clear()
    assert json.loads(handler(STATE, LAMBDA)["Result"]) == "done"


def test_a_checkpoint_that_aws_refuses_for_good_frees_the_key(once):
    def body(event, context):
        return context.step(lambda _: "x" * 300_000, name="charge")

    handler = faces(once, body, boto3_client=_Refusing())["once"]
    assert handler(STATE, LAMBDA)["Status"] == "FAILED"
    assert record(once).status == "RELEASED"
    assert "ValidationException" in record(once).error


@pytest.mark.parametrize("run", ["run", "run_outcome", "run_async", "run_outcome_async"])
def test_a_part_of_an_execution_is_refused_because_its_replay_would_move_later_steps(once, run):
    context = SimpleNamespace(execution_context=SimpleNamespace(durable_execution_arn="arn:first"))
    with pytest.raises(TypeError, match="all of the context's work"):
        asyncio.run(getattr(once, run)("o-1", pytest.fail, context=context))
    assert list(once.ledger.records()) == []


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
