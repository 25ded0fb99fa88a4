"""The sinks ``sqs``, ``sns``, ``eventbridge``, ``kinesis`` and ``firehose``."""

from typing import Annotated
from urllib.parse import quote, urlencode

from msgspec import Meta

from onceward.pipelines.settings import Expression, Seconds
from onceward.pipelines.sinks.outgoing import OutboxSink

Region = Annotated[str | None, Meta(description="Its region, if it is not that of the environment.")]
Text = Annotated[str, Meta(min_length=1)]


class SqsSink(OutboxSink, kw_only=True):
    """Send to a queue of SQS. The key is the attribute `onceward-key`, and the deduplication id in a FIFO queue."""

    queue: Annotated[Text, Meta(description="Its name, URL or ARN.")]
    region: Region = None
    group: Annotated[Expression | None, Meta(description="The message group, which a FIFO queue needs.")] = None
    delay: Annotated[Seconds | None, Meta(description="When it can be received, at most 15m.")] = None

    @property
    def address(self) -> str:
        return _with_options(f"sqs:{self.queue}", region=self.region)

    @property
    def place(self) -> str:
        return "queue"

    @property
    def ordering(self) -> tuple[Expression | None, Seconds | None]:
        return self.group, self.delay


class SnsSink(OutboxSink, kw_only=True):
    """Send to a topic of SNS. The key is the attribute `onceward-key`, and the deduplication id in a FIFO topic."""

    topic: Annotated[Text, Meta(description="Its ARN.")]
    group: Annotated[Expression | None, Meta(description="The message group, which a FIFO topic needs.")] = None

    @property
    def address(self) -> str:
        return f"sns:{self.topic}"

    @property
    def place(self) -> str:
        return "topic"

    @property
    def ordering(self) -> tuple[Expression | None, Seconds | None]:
        return self.group, None


class EventbridgeSink(OutboxSink, kw_only=True):
    """Put events on a bus of EventBridge. The message is the detail, and has the key in its member `onceward`."""

    bus: Annotated[Text, Meta(description="Its name or ARN.")]
    source: Annotated[Text, Meta(description="The source of the events.")]
    detail_type: Annotated[Text, Meta(description="Their detail-type.")]
    region: Region = None

    @property
    def address(self) -> str:
        kinds = {"source": self.source, "detail-type": self.detail_type}
        return _with_options(f"eventbridge:{self.bus}", **kinds, region=self.region)

    @property
    def place(self) -> str:
        return "bus"


class KinesisSink(OutboxSink, kw_only=True):
    """Put records on a stream of Kinesis. The message is a JSON object, and has the key in its member `onceward`."""

    stream: Annotated[Text, Meta(description="Its name or ARN.")]
    region: Region = None
    group: Annotated[Expression | None, Meta(description="The partition key; by default the message's own key.")] = None

    @property
    def address(self) -> str:
        return _with_options(f"kinesis:{self.stream}", region=self.region)

    @property
    def place(self) -> str:
        return "stream"

    @property
    def ordering(self) -> tuple[Expression | None, Seconds | None]:
        return self.group, None


class FirehoseSink(OutboxSink, kw_only=True):
    """Put lines on a stream of Firehose. The message is a JSON object, and has the key in its member `onceward`."""

    stream: Annotated[Text, Meta(description="Its name.")]
    region: Region = None

    @property
    def address(self) -> str:
        return _with_options(f"firehose:{self.stream}", region=self.region)

    @property
    def place(self) -> str:
        return "stream"


def _with_options(place: str, **options: str | None) -> str:
    given = urlencode({name: value for name, value in options.items() if value is not None}, quote_via=quote)
    return f"{place}?{given}" if given else place
