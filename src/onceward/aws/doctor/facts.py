"""The facts that checks look at, and the findings that they make."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from onceward.core.policy import Policy

Level = Literal["error", "warning", "unknown", "skipped", "ok"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "unknown", "skipped", "ok")


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        level: "error" (messages are lost, or effects doubled, sooner or later), "warning", "ok", "unknown" (it was asked for and
            could not be looked at), or "skipped" (nor could this, which nobody has asked for by name).
        check: what was looked at, in a word or two.
        says: what is so.
        why: what comes of it; "" when it is ok.
        mend: what to do about it.
        source: where AWS, or who else it is about, says so.
    """

    level: Level
    check: str
    says: str
    why: str = ""
    mend: str = ""
    source: str = ""


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


class Table(NamedTuple):
    """A ledger in DynamoDB.

    Attributes:
        url: the ledger's.
        name: of the table.
        status: of the table; None when there is no such table.
        keys: its key attributes with their types, HASH first.
        wanted: what the ledger's key attributes are.
        on_demand: whether it is billed by request.
        scaled: whether provisioned capacity is scaled; None is not known.
        ttl: the attribute that its TTL is on; "" when it is off, None when that is not known.
        expiry: the attribute that the ledger's records expire by.
        times: attributes of the ledger's records that hold other times.
        recovers: whether it can be restored to a point in time; None is not known.
        regions: other regions with a replica of it that may lag behind.
        skew: by how many seconds this machine's clock is ahead of DynamoDB's, at least and at most.
    """

    url: str
    name: str = "ledger"
    status: str | None = "ACTIVE"
    keys: tuple[tuple[str, str], ...] = (("key", "S"),)
    wanted: tuple[tuple[str, str], ...] = (("key", "S"),)
    on_demand: bool = True
    scaled: bool | None = None
    ttl: str | None = "expires_at"
    expiry: str = "expires_at"
    times: frozenset[str] = frozenset()
    recovers: bool | None = True
    regions: tuple[str, ...] = ()
    skew: tuple[float, float] = (0.0, 0.0)


class File(NamedTuple):
    """A ledger in an SQLite file.

    Attributes:
        path: of the file.
        kind: of its file system, such as ``ext4``; None is not known.
        free: bytes that are free there.
        writable: whether this user may write the file, or make it.
    """

    path: str
    kind: str | None
    free: int
    writable: bool


class Facts(NamedTuple):
    """All that the checks look at. What is None or empty was not asked for, or could not be read.

    Attributes:
        policy: the options of the consumer's guard: lease, retention and max_attempts.
        queue: the queue.
        dead: its dead-letter queue.
        triggers: its event source mappings.
        function: the function that must be among them, when one was named.
        ledger: the table or the file; or the URL of a ledger in memory.
        gaps: what could not be looked at.
    """

    policy: Policy
    queue: QueueSettings | None = None
    dead: QueueSettings | None = None
    triggers: tuple[Trigger, ...] | None = None
    function: str | None = None
    ledger: Table | File | str | None = None
    gaps: tuple[Finding, ...] = ()


Check = Callable[[Facts], Iterator[Finding]]


def days(seconds: float) -> str:
    """Return a time as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
