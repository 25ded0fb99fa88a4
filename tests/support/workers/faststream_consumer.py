"""A consumer of a campaign over FastStream: ``faststream_consumer.py BROKER URL``."""

import asyncio
import os
import sys

from faststream import AckPolicy, FastStream

from faults import campaign_effects
from onceward.faststream import exactly

KIND, URL = sys.argv[1:]
NACK = AckPolicy.NACK_ON_ERROR
PARALLEL = 10  # messages at a time


def on_nats(handler):
    from faststream.nats import JStream, NatsBroker, PullSub
    from nats.js.api import ConsumerConfig

    broker = NatsBroker(URL, max_reconnect_attempts=-1, reconnect_time_wait=0.2)
    broker.subscriber(
        "orders",
        stream=JStream("ORDERS", declare=False),
        durable="shop",
        config=ConsumerConfig(ack_wait=6),
        pull_sub=PullSub(batch_size=PARALLEL, timeout=1),
        max_workers=PARALLEL,
        ack_policy=NACK,
    )(handler)
    return broker


def on_redis(handler):
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(URL)
    group = {"group": "shop", "consumer": f"consumer-{os.getpid()}", "polling_interval": 100}
    broker.subscriber(stream=StreamSub("orders", **group), max_workers=PARALLEL, ack_policy=NACK)(handler)
    claims = StreamSub("orders", min_idle_time=2000, **group)
    broker.subscriber(stream=claims, max_workers=PARALLEL, ack_policy=NACK)(handler)
    return broker


def on_rabbit(handler):
    from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

    broker = RabbitBroker(URL, default_channel=Channel(prefetch_count=PARALLEL))
    broker.subscriber(RabbitQueue("orders", queue_type=QueueType.QUORUM), ack_policy=NACK)(handler)
    return broker


def on_kafka(handler):
    from faststream.kafka import KafkaBroker

    broker = KafkaBroker(URL, acks="all")
    broker.subscriber(
        "orders",
        "orders.onceward-retry",
        group_id="shop",
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        ack_policy=NACK,
    )(handler)
    return broker


KINDS = {"nats": on_nats, "redis": on_redis, "rabbit": on_rabbit, "kafka": on_kafka}
once = campaign_effects.opened()
guarded = exactly(once, key="order.id", name="campaign", backoff=(0.2, 1.0))(campaign_effects.handle_async)
asyncio.run(FastStream(KINDS[KIND](guarded)).run())
