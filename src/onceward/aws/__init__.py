"""AWS: handlers for the event sources of Lambda, and a worker, a client and a redrive for SQS.

Each name is loaded when it is first asked for, so a function pays at its cold start for its own source only. The modules:

- Lambda: ``delivery`` (a record, decoded), one module for each family of sources (``sqs_event``, ``streams`` with ``kpl``,
  ``kafka``, ``notices``, ``firehose``, ``invoke``, ``api`` with ``api_event``), and what they share: ``lambda_handler``,
  ``lambda_reader`` (from a function's signature to its arguments), ``lambda_response``, ``lambda_loop``.
- SQS: ``queue`` (the client; its steps in ``queue_steps``, with ``message`` and ``address``), ``producer``, and the worker:
  ``worker``, ``serving`` (from messages to outcomes and back), ``polling`` with ``callers``, ``visibility``, ``acknowledge``,
  ``queue_facts``.
- Dead letters: ``redrive``, ``moving`` (one message, whatever is killed), ``dead_letter`` (what is to become of it).
- ``doctor`` and its checks: ``doctor_look`` reads the facts, ``doctor_queue``, ``doctor_lambda`` and ``doctor_ledger`` judge them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.aws.api import on_api
    from onceward.aws.delivery import BatchFailed, Delivery, MalformedEvent, MalformedRecord
    from onceward.aws.firehose import DROPPED, on_firehose
    from onceward.aws.invoke import on_invoke
    from onceward.aws.kafka import on_kafka
    from onceward.aws.notices import on_eventbridge, on_s3, on_sns
    from onceward.aws.queue import Queue
    from onceward.aws.redrive import Redrive
    from onceward.aws.sqs_event import on_sqs, on_sqs_fifo
    from onceward.aws.streams import on_dynamodb_stream, on_kinesis
    from onceward.aws.worker import SqsWorker

__all__ = [
    "DROPPED",
    "BatchFailed",
    "Delivery",
    "MalformedEvent",
    "MalformedRecord",
    "Queue",
    "Redrive",
    "SqsWorker",
    "on_api",
    "on_dynamodb_stream",
    "on_eventbridge",
    "on_firehose",
    "on_invoke",
    "on_kafka",
    "on_kinesis",
    "on_s3",
    "on_sns",
    "on_sqs",
    "on_sqs_fifo",
]

_HOMES = {
    "DROPPED": "firehose",
    "BatchFailed": "delivery",
    "Delivery": "delivery",
    "MalformedEvent": "delivery",
    "MalformedRecord": "delivery",
    "Queue": "queue",
    "Redrive": "redrive",
    "SqsWorker": "worker",
    "on_api": "api",
    "on_dynamodb_stream": "streams",
    "on_eventbridge": "notices",
    "on_firehose": "firehose",
    "on_invoke": "invoke",
    "on_kafka": "kafka",
    "on_kinesis": "streams",
    "on_s3": "notices",
    "on_sns": "notices",
    "on_sqs": "sqs_event",
    "on_sqs_fifo": "sqs_event",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
