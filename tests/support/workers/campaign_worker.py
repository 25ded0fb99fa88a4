"""A consumer of a campaign (faults/campaign.py): ``python campaign_worker.py KIND URL``. What a killed one held comes again soon."""

import asyncio
import os
import signal
import sys
import threading

from faults.campaign_effects import handle, handle_async, opened
from onceward import Claim

KIND, URL = sys.argv[1:]
GUARD = {"key": "order.id", "name": "campaign"}
PARALLEL = 10  # messages at a time


def work(worker, **options):
    """Run a worker of our own."""
    worker(opened(), "orders", handle, url=URL, backoff=(0.5, 2.0), **GUARD, **options).run()


def nats():
    from onceward.nats import NatsWorker

    work(NatsWorker)


def redis():
    from onceward.redis_streams import RedisStreamsWorker

    work(RedisStreamsWorker, idle=5.0)


def rabbitmq():
    from onceward.rabbitmq import RabbitWorker

    work(RabbitWorker, wait=1.0)


def faststream(broker, *subscriptions, **options):
    from faststream import AckPolicy, FastStream

    from onceward.faststream import exactly

    guarded = exactly(opened(), **GUARD, backoff=(0.2, 1.0))(handle_async)
    for given, more in subscriptions:
        broker.subscriber(*given, **more, **options, ack_policy=AckPolicy.NACK_ON_ERROR)(guarded)
    asyncio.run(FastStream(broker).run())


def faststream_nats():
    from faststream.nats import JStream, NatsBroker, PullSub
    from nats.js.api import ConsumerConfig

    of = {"stream": JStream("ORDERS", declare=False), "durable": "shop", "config": ConsumerConfig(ack_wait=6)}
    broker = NatsBroker(URL, max_reconnect_attempts=-1, reconnect_time_wait=0.2)
    pulls = PullSub(batch_size=PARALLEL, timeout=1)
    faststream(broker, (["orders"], of), pull_sub=pulls, max_workers=PARALLEL)


def faststream_redis():
    from faststream.redis import RedisBroker, StreamSub

    group = {"group": "shop", "consumer": f"consumer-{os.getpid()}", "polling_interval": 100}
    streams = (StreamSub("orders", **group), StreamSub("orders", min_idle_time=2000, **group))
    faststream(RedisBroker(URL), *(((), {"stream": one}) for one in streams), max_workers=PARALLEL)


def faststream_rabbit():
    from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

    broker = RabbitBroker(URL, default_channel=Channel(prefetch_count=PARALLEL))
    faststream(broker, ([RabbitQueue("orders", queue_type=QueueType.QUORUM)], {}))


def faststream_kafka():
    from faststream.kafka import KafkaBroker

    of = {"group_id": "shop", "auto_offset_reset": "earliest", "session_timeout_ms": 6000}
    faststream(KafkaBroker(URL, acks="all"), (["orders", "orders.onceward-retry"], of))


def dramatiq():
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker
    from dramatiq.brokers.redis import RedisBroker

    from onceward.dramatiq import exactly

    def handle_order(order: dict, claim: Claim) -> None:
        handle(order, claim)

    if URL.startswith("amqp:"):
        broker = RabbitmqBroker(url=URL, confirm_delivery=True)
    else:
        broker = RedisBroker(url=URL, heartbeat_timeout=5000, maintenance_chance=1_000_000)
    retries = {"max_retries": 1000, "min_backoff": 500, "max_backoff": 2000}
    actor = dramatiq.actor(handle_order, actor_name="handle", broker=broker, queue_name="campaign", **retries)
    exactly(opened(), **GUARD)(actor)
    dramatiq.set_broker(broker)
    broker.emit_after("process_boot")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    worker = dramatiq.Worker(broker, worker_timeout=200, worker_threads=PARALLEL)
    worker.start()
    stop.wait()
    worker.stop()


def taskiq():
    from taskiq import SmartRetryMiddleware
    from taskiq.api import run_receiver_task
    from taskiq_redis import RedisStreamBroker

    from onceward.taskiq import exactly

    options = {"queue_name": "campaign", "consumer_id": "0", "idle_timeout": 6000, "xread_block": 500}
    retries = SmartRetryMiddleware(default_retry_count=1000, default_delay=1)
    broker = RedisStreamBroker(URL, **options).with_middlewares(retries)
    exactly(opened(), **GUARD)(broker.task(task_name="handle", retry_on_error=True)(handle_async))
    # RedisStreamBroker looks for the messages of killed workers only after a new message.
    broker.task(task_name="tick")(lambda: None)
    # A receiver ends when its broker goes away, as its process does.
    asyncio.run(run_receiver_task(broker, max_async_tasks=PARALLEL, run_startup=True))


def procrastinate():
    from procrastinate import App, PsycopgConnector, RetryStrategy

    from onceward.procrastinate import exactly

    app = App(connector=PsycopgConnector(conninfo=URL))
    exactly(opened(), **GUARD)(app.task(name="handle", retry=RetryStrategy(max_attempts=1000, wait=1))(handle_async))

    @app.periodic(cron="* * * * * */2")
    @app.task(name="rescue", queueing_lock="rescue")
    async def rescue(timestamp: int) -> None:
        """Let the jobs of killed workers run again."""
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=5):
            await app.job_manager.retry_job(job)

    async def main():
        options = {"fetch_job_polling_interval": 0.5, "update_heartbeat_interval": 1, "stalled_worker_timeout": 5}
        async with app.open_async():
            await app.run_worker_async(concurrency=PARALLEL, **options)

    asyncio.run(main())


globals()[KIND]()
