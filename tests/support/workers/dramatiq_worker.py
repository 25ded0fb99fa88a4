"""A worker of Dramatiq in a campaign, on the broker of ``DRAMATIQ_BROKER``; its actor's effects are those of faults/campaign_effects.py."""

import os
import signal
import threading

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from faults import campaign_effects
from onceward import Claim
from onceward.dramatiq import exactly

QUEUE = "campaign"


def broker_at(url: str) -> dramatiq.Broker:
    """Return the broker at this URL; one on Redis gives soon to others what a killed worker held."""
    if url.startswith("amqp:"):
        return RabbitmqBroker(url=url, confirm_delivery=True)
    return RedisBroker(url=url, heartbeat_timeout=5000, maintenance_chance=1_000_000)


def actor_on(broker: dramatiq.Broker) -> dramatiq.Actor:
    def handle(order: dict, claim: Claim) -> None:
        campaign_effects.handle(order, claim)

    declared = dramatiq.actor(
        handle, broker=broker, queue_name=QUEUE, max_retries=1000, min_backoff=500, max_backoff=2000
    )
    return exactly(campaign_effects.opened(), key="order.id", name="campaign")(declared)


if __name__ == "__main__":
    made = broker_at(os.environ["DRAMATIQ_BROKER"])
    actor_on(made)
    dramatiq.set_broker(made)
    made.emit_after("process_boot")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    worker = dramatiq.Worker(made, worker_timeout=200, worker_threads=10)
    worker.start()
    stop.wait()
    worker.stop()
