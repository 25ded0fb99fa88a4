"""Crash tests through what people deploy: requests, events of Lambda, messages and transactions that leave with a record."""

import contextlib
import contextvars
import json
import sqlite3
import threading
import warnings

import pytest
from fastapi import FastAPI

from onceward import Claim, Completed, Once, StepMade, current
from onceward.aws import on_sqs
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing import Crashes
from onceward.web import AsgiIdempotency, Route, Rules, Scope

pytestmark = pytest.mark.slow

with warnings.catch_warnings():  # of httpx, whose successor Starlette prefers
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

shop = Once("postgresql://nobody@nowhere.invalid/orders")


class Bank:
    def __init__(self):
        self.charges = []

    def charge(self, order, key=None):
        self.charges.append(order)
        return len(self.charges)


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


def test_a_fastapi_endpoint_that_is_right_passes(monkeypatch):
    app = app_of(pay_right_async)
    with Crashes() as crashes:
        for crash in crashes:
            charged(crash, monkeypatch)
            answer = crash.deliver(post, app)
            crash.happened_once()
            assert answer.status_code == 201
            assert answer.json() == {"paid": 1}
    assert crashes.runs > 20


@on_sqs(shop, key="order.id")
def on_order(order: dict) -> None:
    bank.charge(order["id"], key=current().key("charge"))


def event(*orders):
    records = [{"messageId": o, "body": json.dumps({"id": o}), "eventSource": "aws:sqs"} for o in orders]
    return {"Records": records}


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


def test_messages_leave_once_and_only_with_the_record(monkeypatch):
    for crash in Crashes():
        charged(crash, monkeypatch)
        crash.deliver(sends, {"id": "order-1"})
        crash.happened_once()
        assert [json.loads(message.body) for message in crash.sent] == [{"to": "order-1"}, {"points": 5}]
        assert len({message.key for message in crash.sent}) == 2


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


@pytest.mark.parametrize("handler", [in_one_transaction, in_a_claims_transaction, in_a_steps_transaction])
def test_effects_that_commit_with_their_record_happen_once(handler, tmp_path):
    with Crashes() as crashes:
        for crash, connection in runs(crashes, tmp_path):
            assert crash.deliver(handler, {"id": "order-1"}, connection) == "paid", crash
            assert paid(connection) == ["order-1"], crash
    assert "COMMIT" in str(crash)
    assert crashes.runs > 8


def test_an_effect_in_a_commit_of_its_own_happens_twice(tmp_path):
    with Crashes() as crashes, pytest.raises(AssertionError, match="killed before the record of the result"):
        for crash, connection in runs(crashes, tmp_path):
            crash.deliver(beside_the_record, {"id": "order-1"}, connection)
            assert paid(connection) == ["order-1"], str(crash)
