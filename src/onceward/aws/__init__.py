"""AWS: handlers for the event sources of Lambda, and a worker, a client and a redrive for SQS.

Each name is loaded when it is first asked for, so a function pays at its cold start for its own source only. The packages:

- ``events``: Lambda. A module for each family of sources, from an event to deliveries. They share ``records``, ``handler``,
  and ``loop``.
- ``sqs``: ``queue`` (the client and a queue's settings, with ``message``), ``producer``, and the
  worker in ``broker``, with ``visibility``.
- ``dead_letters``: ``redrive`` (a queue), ``letters`` (a message's key and copy).
- ``targets``: where the outbox sends messages.
- ``templates``: a ledger and what feeds a function, as code.
- ``doctor``: ``look`` reads the facts; ``checks`` judge them, and each store its ledger.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.aws.dead_letters.redrive import Redrive
    from onceward.aws.events.api import on_api, on_webhook
    from onceward.aws.events.brokers import on_activemq, on_kafka, on_rabbitmq
    from onceward.aws.events.handler import BatchFailed
    from onceward.aws.events.invoke import DROPPED, on_firehose, on_invoke
    from onceward.aws.events.notices import on_eventbridge, on_s3, on_sns
    from onceward.aws.events.records import MalformedEvent
    from onceward.aws.events.sqs import on_sqs, on_sqs_fifo
    from onceward.aws.events.streams import on_dynamodb_stream, on_kinesis
    from onceward.aws.sqs.broker import SqsWorker
    from onceward.aws.sqs.producer import send, send_async
    from onceward.aws.sqs.queue import Queue
    from onceward.consumers.delivery import Delivery, MalformedRecord

__all__ = [
    "DROPPED",
    "BatchFailed",
    "Delivery",
    "MalformedEvent",
    "MalformedRecord",
    "Queue",
    "Redrive",
    "SqsWorker",
    "on_activemq",
    "on_api",
    "on_dynamodb_stream",
    "on_eventbridge",
    "on_firehose",
    "on_invoke",
    "on_kafka",
    "on_kinesis",
    "on_rabbitmq",
    "on_s3",
    "on_sns",
    "on_sqs",
    "on_sqs_fifo",
    "on_webhook",
    "send",
    "send_async",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "..consumers.delivery": ("Delivery", "MalformedRecord"),
        ".dead_letters.redrive": ("Redrive",),
        ".events.api": ("on_api", "on_webhook"),
        ".events.invoke": ("DROPPED", "on_firehose", "on_invoke"),
        ".events.notices": ("on_eventbridge", "on_s3", "on_sns"),
        ".events.brokers": ("on_activemq", "on_kafka", "on_rabbitmq"),
        ".events.records": ("MalformedEvent",),
        ".events.handler": ("BatchFailed",),
        ".events.sqs": ("on_sqs", "on_sqs_fifo"),
        ".events.streams": ("on_dynamodb_stream", "on_kinesis"),
        ".sqs.producer": ("send", "send_async"),
        ".sqs.queue": ("Queue",),
        ".sqs.broker": ("SqsWorker",),
    },
)
