"""The source ``lambda``."""

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from onceward.errors import OncewardError
from onceward.pipelines.sources.contract import SourceSettings

if TYPE_CHECKING:
    from onceward.pipelines.flow import Flow
    from onceward.pipelines.sources.contract import Runs


class RunsInLambda(OncewardError):
    """This pipeline's source is AWS Lambda, which calls it.

    Cause: ``onceward run`` has no events of Lambda.

    Fix: Deploy it with the handler ``onceward.pipelines.lambda_handler``; see docs/how-to/pipelines-on-lambda.md.
    """


class EventUnknown(OncewardError):
    """An event is of no trigger that a pipeline takes. Nothing ran.

    Cause: The function has another trigger, such as a function URL or CloudWatch Logs, or it was invoked directly.

    Fix: Remove that trigger. If the whole event is the message, write ``source: {lambda: {direct: true}}``.
    """


class LambdaSource(SourceSettings, kw_only=True):
    """Events of AWS Lambda: SQS, Kinesis, DynamoDB, Kafka, Amazon MQ, SNS, EventBridge, S3, Firehose, and direct invocations.

    The handler is onceward.pipelines.lambda_handler. It takes the events of any trigger, with that trigger's own keys.
    """

    unwrap: Annotated[
        Literal["sns"] | None, Meta(description="sns, if an SQS queue has a topic's messages without raw delivery.")
    ] = None
    partial: Annotated[bool, Meta(description="Whether the event source mapping has ReportBatchItemFailures.")] = True

    direct: Annotated[
        bool, Meta(description="Whether an event of no known trigger is a message: a direct invocation.")
    ] = False

    holds = False

    def open(self, flow: "Flow") -> "Runs":
        raise RunsInLambda(f"{flow.pipeline.model.name} runs in AWS Lambda: see docs/how-to/pipelines-on-lambda.md")
