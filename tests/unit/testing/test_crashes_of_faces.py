"""Crash tests through what people deploy: requests, events of Lambda, batches and messages that leave with a record."""

import contextlib
import contextvars
import json
import threading
import warnings

import pytest
from fastapi import FastAPI

from onceward import Claim, Once, current
from onceward.aws import on_sqs
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


def pay_wrong(order: dict) -> dict:
    return {"paid": bank.charge(order["id"])}


def post(app):
    return TestClient(app, raise_server_exceptions=False).post(
        "/payments", json={"id": "order-1"}, headers={"Idempotency-Key": "key-1"}
    )


def charged(crash, monkeypatch):
    monkeypatch.setattr(f"{__name__}.bank", crash.downstream(Bank(), by="key"))


@pytest.mark.parametrize("pay", [pay_right_async])
def test_a_fastapi_endpoint_that_is_right_passes(pay, monkeypatch):
    app = app_of(pay)
    with Crashes() as crashes:
        for crash in crashes:
            charged(crash, monkeypatch)
            answer = crash.deliver(post, app)
            crash.happened_once()
            assert answer.status_code == 201
            assert answer.json() == {"paid": 1}
    assert crashes.runs > 20


def test_a_fastapi_endpoint_that_charges_twice_is_found(monkeypatch):
    app = app_of(pay_wrong)
    with pytest.raises(AssertionError, match="happened twice"), Crashes() as crashes:
        for crash in crashes:
            charged(crash, monkeypatch)
            crash.deliver(post, app)
            crash.happened_once()


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
