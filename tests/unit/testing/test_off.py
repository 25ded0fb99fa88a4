"""The off switch: guarded functions run as if they had no guard, in tests only."""

import asyncio
import subprocess
import sys
import warnings

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route as Endpoint

from onceward import Once, current
from onceward.aws import on_sqs
from onceward.testing import off
from onceward.web import AsgiIdempotency, Route, Rules, Scope

with warnings.catch_warnings():  # of httpx, whose successor Starlette prefers
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

shop = Once("postgresql://nobody@nowhere.invalid/orders")
ran = []


@shop(key="order.id", cache=10)
def charge(order: dict) -> str:
    ran.append(order)
    return current().key("charge")


@shop(key="order.id")
async def charge_async(order: dict) -> str:
    ran.append(order)
    return await current().step_async("charge", asyncio.sleep, 0, "a step")


@pytest.fixture(autouse=True)
def _fresh():
    ran.clear()


def test_claims_in_hand_batches_and_lambda_handlers_run():
    def take(order: dict) -> None:
        ran.append(order)

    batch = shop.batch(record, key="order.id", name="b")
    handler = on_sqs(shop, key="order.id", name="l")(take)
    event = {"Records": [{"messageId": str(n), "body": '{"id": 1}', "eventSource": "aws:sqs"} for n in range(2)]}
    with off():
        for _ in range(2):
            with shop.claim("order-1") as claim:
                claim.step("charge", ran.append, {})
            assert all(outcome.status == "done" for outcome in batch.run([{"id": 1}]))
            assert handler(event, None) == {"batchItemFailures": []}
    assert ran


def test_requests_without_a_key_are_answered():
    def pay(_):
        ran.append(current().attempt)
        return JSONResponse({"paid": True}, 201)

    app = Starlette(routes=[Endpoint("/orders", pay, methods=["POST"])])
    app.add_middleware(AsgiIdempotency, once=shop, rules=Rules(Route("/orders"), scope=Scope.EVERYBODY), name="shop")
    with off():
        client = TestClient(app)
        assert [client.post("/orders").status_code for _ in range(2)] == [201, 201]
        with_key = [client.post("/orders", headers={"Idempotency-Key": "k"}).status_code for _ in range(2)]
    assert with_key == [201, 201]
    assert ran == [1, 1, 1, 1]


def test_each_call_runs_without_a_key_and_afterwards_all_is_guarded_again(caplog):
    async def both():
        return await asyncio.gather(charge_async({"id": 1}), charge_async({}))

    once = Once("memory:")
    with off():
        assert charge({"id": 1}) == charge({"id": 1})
        assert asyncio.run(both()) == ["a step", "a step"]
        once.run(1, record, {})
        Once("dynamodb://orders?endpoint=http://nowhere.invalid").run(1, record, {})
    assert "onceward is OFF" in caplog.text
    assert len(ran) == 6
    once.run(1, record, {})
    once.run(1, record, {})
    assert len(ran) == 7


def record(order: dict) -> None:
    ran.append(order)


@pytest.mark.slow
def test_it_is_refused_where_no_test_runs():
    code = "import unittest, unittest.mock, pytest, onceward.testing\nwith onceward.testing.off(): print('off')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "off() is for tests" in done.stderr
    assert "off" not in done.stdout
