"""The facts that checks look at."""

from typing import Final, NamedTuple

from onceward.aws.sqs.settings import QueueSettings
from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Inspected

LAMBDA_RECEIVES: Final = 5  # before a message becomes a dead letter: Lambda also receives some that it does not run
TIMEOUTS: Final = 6  # of the function in one visibility timeout, so that Lambda can try again when it is throttled


class Trigger(NamedTuple):
    """An event source mapping from the queue to a Lambda function."""

    function: str
    timeout: int = 3  # seconds that an invocation may take
    enabled: bool = True
    partial: bool = True  # whether it takes partial batch responses
    window: int = 0  # seconds for which messages are gathered before an invocation
    concurrency: int | None = None  # how many invocations it makes at a time; None is no limit
    reserved: int | None = None  # the function's reserved concurrency; None if it has none, or if that is unknown
    filtered: bool = False  # whether it has a filter


class Facts(NamedTuple):
    """All that the checks look at. What is None or empty was not asked for, or could not be read."""

    policy: Policy  # the options of the consumer's guard: lease, retention and max_attempts
    queue: QueueSettings | None = None
    dead: QueueSettings | None = None  # its dead-letter queue
    triggers: tuple[Trigger, ...] | None = None  # its event source mappings
    function: str | None = None  # the function that must be among them, if one was named
    ledger: Inspected | None = None
    overdue: float = 0.0  # seconds for which messages in the ledger are due at most; 0 if none are
    gaps: tuple[Finding, ...] = ()  # what could not be read


def days(seconds: float) -> str:
    """Return a time as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
