"""The source ``lambda``."""

from typing import Literal

from onceward.errors import OncewardError
from onceward.pipelines.contract import Runs, SourceSettings
from onceward.pipelines.flow import Flow


class LambdaSource(SourceSettings, kw_only=True):
    """Events of AWS Lambda: SQS, Kinesis, DynamoDB, Kafka, Amazon MQ, SNS, EventBridge, S3, Firehose, and direct invocations.

    The handler is onceward.pipelines.lambda_handler. It takes the events of any trigger, with that trigger's own keys.

    Attributes:
        unwrap: sns, if an SQS queue has a topic's messages without raw delivery.
        partial: Whether the event source mapping has ReportBatchItemFailures.
        direct: Whether an event of no known trigger is a message: a direct invocation.
    """

    unwrap: Literal["sns"] | None = None
    partial: bool = True

    direct: bool = False

    holds = False

    def open(self, flow: "Flow") -> "Runs":
        raise OncewardError(
            f"{flow.model.name} runs in AWS Lambda, with the handler onceward.pipelines.lambda_handler: see "
            "docs/how-to/pipelines.md"
        )
