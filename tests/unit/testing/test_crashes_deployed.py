"""Crash tests through what people deploy: requests, events of Lambda, messages and transactions; and the off switch."""

import asyncio
import contextlib
import contextvars
import json
import sqlite3
import subprocess
import sys
import threading
import warnings

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route as Endpoint
from test_crashes import Bank

from onceward import Claim, Completed, KeyMissing, Once, StepMade, current
from onceward.aws import on_sqs
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing import Crashes, off
from onceward.web import AsgiIdempotency, Route, Rules, Scope

with warnings.catch_warnings():  # of httpx, whose successor Starlette prefers
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

shop = Once("postgresql://nobody@nowhere.invalid/orders")


bank = Bank()


def app_of(pay):
    app = FastAPI()
    app.post("/payments", status_code=201)(pay)
    app.add_middleware(AsgiIdempotency, once=shop, rules=Rules(Route("/payments"), scope=Scope.EVERYBODY), name="pay")
    return app


async def pay_right_async(order: dict) -> dict:
    return {"paid": bank.charge(order["id"], key=current().key("charge"))}


def post(app):
    return TestClient(app, raise_server_exceptions=False).post(
        "/payments", json={"id": "order-1"}, headers={"Idempotency-Key": "key-1"}
    )


def charged(crash, monkeypatch):
    monkeypatch.setattr(f"{__name__}.bank", crash.downstream(Bank(), by="key"))


@pytest.mark.slow
def test_a_fastapi_endpoint_that_is_right_passes(monkeypatch):
    app = app_of(pay_right_async)
    with Crashes() as crashes:
        for crash in crashes:
            charged(crash, monkeypatch)
            answer = crash.deliver(post, app)
            crash.happened_once()
            assert answer.status_code == 201
            assert answer.json() == {"paid": "receipt of order-1"}
    assert crashes.runs > 20


@on_sqs(shop, key="order.id")
def on_order(order: dict) -> None:
    bank.charge(order["id"], key=current().key("charge"))


def event(*orders):
    records = [{"messageId": o, "body": json.dumps({"id": o}), "eventSource": "aws:sqs"} for o in orders]
    return {"Records": records}


@pytest.mark.slow
def test_an_sqs_handler_of_lambda_passes(monkeypatch):
    with Crashes() as crashes:
        for crash in crashes:
            charged(crash, monkeypatch)
            crash.deliver(on_order, event("a", "b"), None)
            crash.happened_once()
            assert sorted(bank.charges) == ["a", "b"]


@shop(key="order.id")
def in_a_thread(order: dict) -> None:
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(in_steps, order))
    thread.start()
    thread.join()
    if not bank.charges:
        raise ValueError("the thread has failed")


def in_steps(order: dict) -> None:
    with contextlib.suppress(Exception):  # the thread that waits looks at the bank
        current().step("charge", bank.charge, order["id"], key=current().key("charge"))


@pytest.mark.slow
def test_a_worker_is_killed_in_its_threads_too(monkeypatch):
    with Crashes() as crashes:
        for crash in crashes:
            charged(crash, monkeypatch)
            crash.deliver(in_a_thread, {"id": "a"})
            assert bank.charges == ["a"]


@shop(key="order.id")
def sends(order: dict, claim: Claim) -> None:
    claim.send("sqs:letters", {"to": order["id"]})
    claim.send("sqs:letters", {"points": 5})
    bank.charge(order["id"], key=claim.key("charge"))


@pytest.mark.slow
def test_messages_leave_once_and_only_with_the_record(monkeypatch):
    for crash in Crashes():
        charged(crash, monkeypatch)
        crash.deliver(sends, {"id": "order-1"})
        crash.happened_once()
        assert [json.loads(message.body) for message in crash.sent] == [{"to": "order-1"}, {"points": 5}]
        assert len({message.key for message in crash.sent}) == 2


@pytest.mark.slow
def test_a_message_that_only_a_first_attempt_sends_is_found(monkeypatch):
    @shop(key="order.id", name="once-only")
    def forgets(order: dict, claim: Claim) -> None:
        if claim.attempt == 1:
            claim.send("sqs:letters", {"to": order["id"]})

    with pytest.raises(AssertionError, match=r"message to sqs:letters.* happened 0 times"), Crashes() as crashes:
        for crash in crashes:
            crash.deliver(forgets, {"id": "order-1"})
            crash.happened_once()


ledger = Once("sqlite:////nowhere/at/all/orders.db")


def runs(crashes, tmp_path, **options):
    """Yield each run, with a connection to its ledger."""
    place = lambda: str(tmp_path / f"{crashes.runs}.db")
    for crash in crashes(ledger=lambda clock: SqliteStore(place(), clock=clock), **options):
        connection = sqlite3.connect(place(), isolation_level=None)
        connection.execute("CREATE TABLE payments (id)")
        yield crash, connection
        connection.close()


def paid(connection):
    return [id_ for (id_,) in connection.execute("SELECT id FROM payments")]


def in_one_transaction(order, connection):
    try:
        with ledger.transaction(order["id"], connection, name="pay") as tx:
            connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
            tx.result = "paid"
            return tx.result
    except Completed as done:
        return done.result


@ledger(key="order.id")
def in_a_claims_transaction(order: dict, connection, claim: Claim) -> str:
    with claim.transaction(connection) as tx:
        connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
        tx.result = "paid"
    return "paid"


@ledger(key="order.id")
def in_a_steps_transaction(order: dict, connection, claim: Claim) -> str:
    try:
        with claim.step_transaction("pay", connection) as tx:
            connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
            tx.result = "paid"
    except StepMade:
        pass
    return "paid"


@ledger(key="order.id")
def beside_the_record(order: dict, connection) -> str:
    connection.execute("INSERT INTO payments VALUES (?)", (order["id"],))
    return "paid"


@pytest.mark.slow
@pytest.mark.parametrize("handler", [in_one_transaction, in_a_claims_transaction, in_a_steps_transaction])
def test_effects_that_commit_with_their_record_happen_once(handler, tmp_path):
    with Crashes() as crashes:
        for crash, connection in runs(crashes, tmp_path):
            assert crash.deliver(handler, {"id": "order-1"}, connection) == "paid", crash
            assert paid(connection) == ["order-1"], crash
    assert "COMMIT" in str(crash)
    assert crashes.runs > 8


@pytest.mark.slow
def test_an_effect_in_a_commit_of_its_own_happens_twice(tmp_path):
    with Crashes() as crashes, pytest.raises(AssertionError, match="killed before the record of the result"):
        for crash, connection in runs(crashes, tmp_path):
            crash.deliver(beside_the_record, {"id": "order-1"}, connection)
            assert paid(connection) == ["order-1"], str(crash)


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


def test_requests_of_one_key_run_each_time():
    def pay(_):
        ran.append(current().attempt)
        return JSONResponse({"paid": True}, 201)

    app = Starlette(routes=[Endpoint("/orders", pay, methods=["POST"])])
    app.add_middleware(AsgiIdempotency, once=shop, rules=Rules(Route("/orders"), scope=Scope.EVERYBODY), name="shop")
    with off():
        client = TestClient(app)
        assert client.post("/orders").status_code == 400
        assert [client.post("/orders", headers={"Idempotency-Key": "k"}).status_code for _ in range(2)] == [201, 201]
    assert ran == [1, 1]


def test_each_call_runs_and_afterwards_all_is_guarded_again(caplog):
    async def both():
        return await asyncio.gather(charge_async({"id": 1}), charge_async({"id": 1}))

    once = Once("memory:")
    with off():
        assert charge({"id": 1}) == charge({"id": 1})
        assert asyncio.run(both()) == ["a step", "a step"]
        with pytest.raises(KeyMissing):
            charge({})
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
