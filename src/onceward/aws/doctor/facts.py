"""The facts that checks look at."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Inspected


class QueueSettings(NamedTuple):
    """The settings of a queue (SQS API Reference, SetQueueAttributes); all times are seconds.

    Attributes:
        name: of the queue.
        arn: of the queue.
        fifo: whether it is a FIFO queue.
        visibility: for which a received message is invisible.
        retention: after which a message is dropped.
        delay: before a message can be received.
        wait: of a receive that does not say how long it waits.
        dead_letters: the ARN of its dead-letter queue; None when it has none.
        receives: after how many of them a message goes there.
        by_content: whether a FIFO queue takes messages of one content for one message.
        allows: the RedriveAllowPolicy; empty when any queue may send its dead letters here.
    """

    name: str
    arn: str
    fifo: bool = False
    visibility: int = 30
    retention: int = 345600
    delay: int = 0
    wait: int = 0
    dead_letters: str | None = None
    receives: int = 0
    by_content: bool = False
    allows: Mapping[str, object] = {}

    @classmethod
    def read(cls, attributes: Mapping[str, str]) -> "QueueSettings":
        """Return the settings that the attributes of a queue tell."""
        arn = attributes["QueueArn"]
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return cls(
            name=arn.rpartition(":")[2],
            arn=arn,
            fifo=attributes.get("FifoQueue") == "true",
            visibility=int(attributes["VisibilityTimeout"]),
            retention=int(attributes["MessageRetentionPeriod"]),
            delay=int(attributes.get("DelaySeconds", 0)),
            wait=int(attributes.get("ReceiveMessageWaitTimeSeconds", 0)),
            dead_letters=policy.get("deadLetterTargetArn"),
            receives=int(policy.get("maxReceiveCount", 0)),  # some tools write it as text
            by_content=attributes.get("ContentBasedDeduplication") == "true",
            allows=json.loads(attributes.get("RedriveAllowPolicy") or "{}"),
        )


class Trigger(NamedTuple):
    """An event source mapping from the queue to a Lambda function.

    Attributes:
        function: its name.
        timeout: seconds that an invocation may take.
        enabled: whether it is on.
        partial: whether it takes partial batch responses.
        window: seconds for which messages are gathered before an invocation.
        concurrency: how many invocations it makes at a time; None is no limit.
        reserved: the function's reserved concurrency; None when it has none, or that is not known.
        filtered: whether it has a filter.
    """

    function: str
    timeout: int = 3
    enabled: bool = True
    partial: bool = True
    window: int = 0
    concurrency: int | None = None
    reserved: int | None = None
    filtered: bool = False


class Facts(NamedTuple):
    """All that the checks look at. What is None or empty was not asked for, or could not be read.

    Attributes:
        policy: the options of the consumer's guard: lease, retention and max_attempts.
        queue: the queue.
        dead: its dead-letter queue.
        triggers: its event source mappings.
        function: the function that must be among them, when one was named.
        ledger: what a look at it told.
        gaps: what could not be looked at.
    """

    policy: Policy
    queue: QueueSettings | None = None
    dead: QueueSettings | None = None
    triggers: tuple[Trigger, ...] | None = None
    function: str | None = None
    ledger: Inspected | None = None
    gaps: tuple[Finding, ...] = ()


Check = Callable[[Facts], Iterator[Finding]]


def days(seconds: float) -> str:
    """Return a time as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
