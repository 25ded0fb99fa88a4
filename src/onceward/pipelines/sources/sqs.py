"""The source ``sqs``."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from onceward.pipelines.sources.brokers import WorkerSource


class SqsSource(WorkerSource, kw_only=True):
    """A queue of Amazon SQS. A message's own key is its attribute onceward-key, else its id."""

    queue: Annotated[str, Meta(description="Its URL, ARN or name.", min_length=1)]
    unwrap: Annotated[
        Literal["sns"] | None, Meta(description="sns, if the queue has a topic's messages without raw delivery.")
    ] = None
    visibility: Annotated[
        Annotated[int, Meta(ge=1, le=43_200)] | None,
        Meta(
            description="Seconds until another worker receives a killed worker's message. By default the queue's own."
        ),
    ] = None
    wait: Annotated[float, Meta(description="Seconds that a poll waits for a message.", ge=0, le=20)] = 20

    worker: ClassVar[str] = "onceward.aws.sqs.worker:SqsWorker"
