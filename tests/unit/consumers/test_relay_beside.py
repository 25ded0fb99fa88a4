"""Workers and ASGI applications send what others have left, unless they are told not to."""

import asyncio
import threading
import time

import pytest
from test_toy_broker import ToyBroker

from onceward import Once
from onceward.consumers.worker import Worker
from onceward.stores.memory import MemoryStore
from onceward.web import AsgiIdempotency, Rules, Scope
from queues.boxes import Box, left_by_a_crash


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("onceward.outbox.relay.EVERY", 0.02)


@pytest.fixture
def box():
    return Box()


@pytest.fixture
def once(clock, box, monkeypatch):
    """A ledger with a message that is due."""
    made = Once(MemoryStore(clock), name="n")
    left_by_a_crash(made, monkeypatch, "k", (box.address, "left"))
    clock.advance(31.0)
    return made


def relays():
    return [thread for thread in threading.enumerate() if thread.name == "onceward-relay"]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def serve(worker, condition):
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        return until(condition)
    finally:
        worker.stop()
        thread.join(60)
        assert relays() == []


def test_a_worker_sends_what_a_crash_has_left(once, box):
    assert serve(Worker(once, ToyBroker(), len), lambda: box.bodies == ["left"])


@pytest.mark.slow
def test_a_worker_can_be_told_not_to(once, box):
    worker = Worker(once, ToyBroker(), len, relay=False)
    assert not serve(worker, lambda: relays() or box.bodies or worker.in_flight or time.sleep(0.3))
    assert box.bodies == []


def live(app, condition):
    """Run an application's lifespan, and wait within it."""

    async def main():
        ended = asyncio.Event()
        begun, sent = asyncio.Event(), []

        async def receive():
            if not begun.is_set():
                return {"type": "lifespan.startup"}
            await ended.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message):
            sent.append(message["type"])
            begun.set()

        task = asyncio.create_task(app({"type": "lifespan"}, receive, send))
        await begun.wait()
        held = await asyncio.to_thread(until, condition, 2.0)
        ended.set()
        await task
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert relays() == []
        return held

    return asyncio.run(main())


async def application(scope, receive, send):
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


def test_an_asgi_application_sends_what_a_crash_has_left(once, box):
    app = AsgiIdempotency(application, once, Rules(scope=Scope.EVERYBODY))
    assert live(app, lambda: box.bodies == ["left"])


def test_there_is_no_relay_on_lambda(once, box, monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    app = AsgiIdempotency(application, once, Rules(scope=Scope.EVERYBODY))
    assert not live(app, lambda: relays() or box.bodies)
