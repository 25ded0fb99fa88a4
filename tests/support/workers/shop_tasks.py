"""A task of each queue, in a module that any process can import, on the servers that the environment names."""

import os

import dramatiq
from celery import Celery
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from procrastinate import App, PsycopgConnector
from redis import Redis
from rq.decorators import job
from taskiq_redis import RedisStreamBroker

REDIS, RABBITMQ, POSTGRES = (os.environ[f"SHOP_{name}"] for name in ("REDIS", "RABBITMQ", "POSTGRES"))
QUEUE = os.environ["SHOP_QUEUE"]

celery = Celery("shop", broker=REDIS, set_as_current=False)
celery.conf.task_default_queue = f"celery-{QUEUE}"
on_redis = RedisBroker(url=REDIS, namespace=QUEUE)
on_rabbitmq = RabbitmqBroker(url=RABBITMQ, confirm_delivery=True)
jobs = App(connector=PsycopgConnector(conninfo=POSTGRES, min_size=1))
stream = RedisStreamBroker(REDIS, queue_name=f"stream-{QUEUE}", consumer_id="0", xread_block=100)
connection = Redis.from_url(REDIS)


@celery.task
def celery_task(order: int, note: str = "") -> None:
    """Do nothing, as the others."""


@dramatiq.actor(broker=on_redis, queue_name="orders")
def redis_actor(order: int, note: str = "") -> None: ...


@dramatiq.actor(broker=on_rabbitmq, queue_name=QUEUE)
def rabbitmq_actor(order: int, note: str = "") -> None: ...


@jobs.task(queue=QUEUE)
async def procrastinate_task(order: int, note: str = "") -> None: ...


@stream.task
async def taskiq_task(order: int, note: str = "") -> None: ...


@job(QUEUE, connection=connection)
def rq_job(order: int, note: str = "") -> None: ...
