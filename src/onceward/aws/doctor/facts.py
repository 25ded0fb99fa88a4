"""The facts that checks look at."""

from typing import NamedTuple

from onceward.aws.sqs.settings import QueueSettings
from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Inspected


class Trigger(NamedTuple):
    """An event source mapping from the queue to a Lambda function.

    Attributes:
        function: its name.
        timeout: seconds that an invocation may take.
        enabled: whether it is on.
        partial: whether it takes partial batch responses.
        window: seconds for which messages are gathered before an invocation.
        concurrency: how many invocations it makes at a time; None is no limit.
        reserved: the function's reserved concurrency; None if it has none, or if that is unknown.
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
        function: the function that must be among them, if one was named.
        ledger: the facts about the ledger.
        gaps: what could not be read.
    """

    policy: Policy
    queue: QueueSettings | None = None
    dead: QueueSettings | None = None
    triggers: tuple[Trigger, ...] | None = None
    function: str | None = None
    ledger: Inspected | None = None
    gaps: tuple[Finding, ...] = ()


def days(seconds: float) -> str:
    """Return a time as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
