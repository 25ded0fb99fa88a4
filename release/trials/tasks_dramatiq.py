"""An actor that gets one order twice, on Dramatiq's broker for tests."""

import dramatiq
from dramatiq.brokers.stub import StubBroker

from onceward import Once
from onceward.dramatiq import exactly

broker = StubBroker()
dramatiq.set_broker(broker)
once = Once("sqlite:///dramatiq.db")
calls = []


@exactly(once, key="order.id")
@dramatiq.actor
def charge(order: dict) -> None:
    calls.append(order)


charge.send({"id": 1})
charge.send({"id": 1})
worker = dramatiq.Worker(broker, worker_timeout=100)
worker.start()
broker.join("default", timeout=30_000)
worker.stop()
assert len(calls) == 1
