"""A pipeline as the handler of an AWS Lambda function: :func:`lambda_handler` takes the events of any trigger."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from onceward.aws.events.brokers import KAFKA, on_activemq, on_kafka, on_rabbitmq
from onceward.aws.events.handler import LambdaHandler
from onceward.aws.events.invoke import DROPPED, on_firehose, on_invoke
from onceward.aws.events.notices import on_eventbridge, on_s3, on_sns
from onceward.aws.events.records import MalformedEvent, at, text_at
from onceward.aws.events.sqs import on_sqs, on_sqs_fifo
from onceward.aws.events.streams import on_dynamodb_stream, on_kinesis
from onceward.claim.claim import Claim
from onceward.consumers.delivery import Delivery
from onceward.pipelines.marks import Mistake, PipelineInvalid
from onceward.pipelines.pipeline import NO_HOLD, Pipeline, load
from onceward.pipelines.sources.brokers import LambdaSource

VARIABLE: Final = "ONCEWARD_PIPELINE"
# What makes the handler of each kind of event, and the settings that it takes.
_KINDS: Final[dict[str, tuple[Callable[..., Any], tuple[str, ...]]]] = {
    "sqs": (on_sqs, ("concurrency", "unwrap", "partial")),
    "sqs-fifo": (on_sqs_fifo, ("concurrency", "unwrap", "partial")),
    "kinesis": (on_kinesis, ("partial",)),
    "dynamodb": (on_dynamodb_stream, ("partial",)),
    "kafka": (on_kafka, ("concurrency", "partial")),
    "rabbitmq": (on_rabbitmq, ("concurrency",)),
    "activemq": (on_activemq, ("concurrency",)),
    "sns": (on_sns, ()),
    "s3": (on_s3, ()),
    "eventbridge": (on_eventbridge, ()),
    "firehose": (on_firehose, ("concurrency",)),
    "invoke": (on_invoke, ()),
}


@cache
def _pipeline(name: str) -> Pipeline:
    pipeline = load(Path(os.environ.get("LAMBDA_TASK_ROOT", "."), name))
    if pipeline.model.hold is not None:
        raise PipelineInvalid(name, [Mistake(pipeline.places.place_of("hold"), NO_HOLD)])
    return pipeline


@cache
def _handler(name: str, kind: str) -> LambdaHandler[Any]:
    """Return what handles the events of a kind."""
    pipeline = _pipeline(name)
    source = pipeline.source if isinstance(pipeline.source, LambdaSource) else LambdaSource()
    if kind == "invoke" and not source.direct:
        raise MalformedEvent(
            f"the event is of no trigger that pipeline {pipeline.model.name} takes; if it is a message, write source: "
            "{lambda: {direct: true}}"
        )
    settings: dict[str, Any] = {
        "concurrency": pipeline.model.concurrency,
        "unwrap": source.unwrap,
        "partial": source.partial,
    }
    make, names = _KINDS[kind]
    handler: LambdaHandler[Any] = make(pipeline.once, **{name: settings[name] for name in names}, **pipeline.options)(
        transformation(pipeline) if kind == "firehose" else pipeline.handler
    )
    return handler


def kind_of(event: object) -> str:
    """Return what kind of event it is. What is of no trigger is a direct invocation."""
    records = at(event, "Records")
    if isinstance(records, list) and records:
        first = records[0]
        kind = (text_at(first, "eventSource") or text_at(first, "EventSource") or "").removeprefix("aws:")
        if kind == "sqs" and (text_at(first, "eventSourceARN") or "").endswith(".fifo"):
            return "sqs-fifo"
        if kind in {"sqs", "kinesis", "dynamodb", "sns", "s3"}:
            return kind
    source = text_at(event, "eventSource")
    if source in {"aws:rmq", "aws:mq"}:
        return "rabbitmq" if source == "aws:rmq" else "activemq"
    if source in KAFKA and at(event, "records") is not None:
        return "kafka"
    if at(event, "deliveryStreamArn") is not None and isinstance(at(event, "records"), list):
        return "firehose"
    if text_at(event, "detail-type") is not None and isinstance(event, dict) and "detail" in event:
        return "eventbridge"
    return "invoke"


def transformation(pipeline: Pipeline) -> Callable[..., object]:
    """Return what gives Firehose the record that the sink ``stdout`` gets, and drops a record that does not come so far."""

    async def transform(message: Any, delivery: Delivery, _claim: Claim) -> object:
        lines: Any = await pipeline.handle(message, delivery)
        return DROPPED if not lines else lines[0]

    return transform


def lambda_handler(event: object, context: object = None) -> object:
    """Handle one event of AWS Lambda by the pipeline whose file the variable ONCEWARD_PIPELINE names.

    The file is beside the function's code. The answer is what the trigger needs. For SQS, Kinesis, DynamoDB and Kafka it names the
    records that failed. For Firehose it has the transformed records. For a direct invocation it is what the sink ``stdout`` got.

    Raises:
        PipelineInvalid: the file has mistakes.
        OSError: there is no such file.
    """
    return _handler(os.environ.get(VARIABLE) or "pipeline.yaml", kind_of(event))(event, context)
