"""Workers and ASGI applications send what others have left, unless they are told not to."""

import threading
import time
import warnings

import pytest
from starlette.applications import Starlette
from test_toy_broker import ToyBroker, working

from onceward import Once
from onceward.stores.memory import MemoryStore
from onceward.web import AsgiIdempotency, Rules, Scope
from queues.boxes import Box, left_by_a_crash
from waiting import until

with warnings.catch_warnings():  # of httpx, whose successor Starlette prefers
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient


@pytest.fixture
def box():
    return Box()


@pytest.fixture
def once(clock, box, monkeypatch):
    """A ledger with a message that is due."""
    monkeypatch.setattr("onceward.outbox.relay.EVERY", 0.02)
    made = Once(MemoryStore(clock), name="n")
    left_by_a_crash(made, monkeypatch, "k", (box.address, "left"))
    clock.advance(31.0)
    return made


def relays():
    return [thread for thread in threading.enumerate() if thread.name == "onceward-relay"]


def served(once):
    """An application within its lifespan."""
    return TestClient(AsgiIdempotency(Starlette(), once, Rules(scope=Scope.EVERYBODY)))


def test_a_worker_sends_what_a_crash_has_left_unless_it_is_told_not_to(once, box):
    with working(once, ToyBroker(), len, relay=False):
        time.sleep(0.3)
        assert relays() == box.bodies == []
    with working(once, ToyBroker(), len):
        until(lambda: box.bodies == ["left"])
    assert relays() == []


def test_an_asgi_application_sends_what_a_crash_has_left(once, box):
    with served(once):
        until(lambda: box.bodies == ["left"])
    assert relays() == []


def test_there_is_no_relay_on_lambda(once, box, monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    with served(once):
        time.sleep(0.3)
        assert relays() == box.bodies == []
