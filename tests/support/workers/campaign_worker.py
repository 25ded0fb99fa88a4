"""A worker of a campaign on a broker: ``python campaign_worker.py BROKER URL``."""

import sys

from faults.campaign_effects import handle, opened
from onceward.nats import NatsWorker
from onceward.rabbitmq import RabbitWorker
from onceward.redis_streams import RedisStreamsWorker

WORKERS = {
    "nats": (NatsWorker, {}),
    "rabbitmq": (RabbitWorker, {"wait": 1.0}),
    "redis": (RedisStreamsWorker, {"idle": 5.0}),
}
BROKER, URL = sys.argv[1:]
worker, options = WORKERS[BROKER]
worker(opened(), "orders", handle, key="order.id", name="campaign", url=URL, backoff=(0.5, 2.0), **options).run()
