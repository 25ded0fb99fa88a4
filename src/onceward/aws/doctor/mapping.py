"""The facts that checks look at, and the checks of the Lambda functions that a queue calls."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from onceward.aws.sqs.queue import QueueSettings
from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Inspected

LAMBDA_RECEIVES: Final = 5  # before a message becomes a dead letter: Lambda also receives some that it does not run
TIMEOUTS: Final = 6  # of the function in one visibility timeout, so that Lambda can try again when it is throttled


class Trigger(NamedTuple):
    """An event source mapping from the queue to a Lambda function."""

    function: str
    timeout: int = 3  # seconds that an invocation may take
    partial: bool = True  # whether it takes partial batch responses
    window: int = 0  # seconds for which messages are gathered before an invocation


class Facts(NamedTuple):
    """All that the checks look at. A field is None or empty if doctor did not ask for it, or could not read it."""

    policy: Policy  # the options of the consumer's guard: lease, retention and max_attempts
    queue: QueueSettings | None = None
    dead: QueueSettings | None = None  # its dead-letter queue
    triggers: tuple[Trigger, ...] | None = None  # its event source mappings
    function: str | None = None  # the function that must be among them, if one was named
    ledger: Inspected | None = None
    overdue: float = 0.0  # seconds for which messages in the ledger are due at most; 0 if none are
    gaps: Sequence[Finding] = ()  # what could not be read


def days(seconds: float) -> str:
    """Return a time as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


LAMBDA: Final = "Lambda Developer Guide, Creating and configuring an Amazon SQS event source mapping"
_PARTIAL: Final = "Lambda Developer Guide, Handling errors for an SQS event source in Lambda"

_MAPPING: Final = "event source mapping"


def functions(queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    """Check the event source mappings, if there are any."""
    if facts.triggers is None:
        return
    triggers = [trigger for trigger in facts.triggers if facts.function in {None, trigger.function}]
    if facts.function is not None and not triggers:
        says, why = f"{facts.function} has none for {queue.name}", "nothing of the queue comes to the function"
        fix = f"create one, with FunctionResponseTypes=ReportBatchItemFailures and EventSourceArn={queue.arn}"
        yield Finding("error", _MAPPING, says, why, fix, LAMBDA)
    for trigger in triggers:
        yield from _partial(trigger)
        yield from _timeout(trigger, queue, facts)


def _partial(trigger: Trigger) -> Iterator[Finding]:
    check = "partial responses"
    if trigger.partial:
        yield Finding("ok", check, f"Lambda keeps the messages that {trigger.function} reports as failed")
        return
    says = f"the event source mapping of {trigger.function} has no ReportBatchItemFailures"
    why = "Lambda ignores which messages the handler reports as failed, and deletes them with the others: they are lost"
    fix = "set FunctionResponseTypes=ReportBatchItemFailures, or give on_sqs partial=False until then"
    yield Finding("error", check, says, why, fix, _PARTIAL)


def _timeout(trigger: Trigger, queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    check = "function timeout"
    minimum = TIMEOUTS * trigger.timeout + trigger.window
    window = f" and a batching window of {trigger.window} s" if trigger.window else ""
    says = f"{trigger.function} has a timeout of {trigger.timeout} s{window}, and {queue.name} a visibility of {queue.visibility} s"
    fix = f"give the queue a visibility timeout of {minimum} s"
    if queue.visibility < trigger.timeout:
        why = "messages come again while they are handled, and each time costs a receive"
        yield Finding("error", check, says, why, f"{fix}, or the function a shorter timeout", LAMBDA)
    elif queue.visibility < minimum:
        why = "Lambda needs time to try again when the function is throttled: six timeouts and the window"
        yield Finding("warning", check, says, why, fix, LAMBDA)
    else:
        yield Finding("ok", check, says)
    if facts.ledger is not None and facts.ledger.is_local:
        says = f"{trigger.function} is a Lambda function, and only one host can use its ledger"
        why = "each of the function's environments has a disk of its own, so none knows what the others have done"
        yield Finding(
            "error", "ledger", says, why, "give it a ledger in DynamoDB: `onceward init --store dynamodb://TABLE`"
        )
