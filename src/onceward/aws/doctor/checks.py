"""The facts that checks look at, and the checks of a queue, its dead-letter queue and its Lambda functions, against the consumer's options."""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from onceward.aws.sqs.queue import QueueSettings
from onceward.consumers.broker import ATTEMPTS
from onceward.core.policy import Policy
from onceward.stores.inspection import Finding, Inspected, Level

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


_FEW: Final = 3  # receives that one lost worker costs: the lost one, one that finds the key busy, one that succeeds
_DEAD: Final = "SQS Developer Guide, Using dead-letter queues in Amazon SQS"
_KEPT: Final = "SQS Developer Guide, Setting-up dead-letter queue retention in Amazon SQS"
_ALLOW: Final = "SQS API Reference, SetQueueAttributes (RedriveAllowPolicy)"
_VISIBLE: Final = "SQS Developer Guide, Amazon SQS visibility timeout"


def dead_letters(queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    """Check that a message which always fails ends where somebody sees it."""
    check, dead = "dead letters", facts.dead
    if queue.dead_letters is None:
        yield _alone(queue, facts)
        return
    if dead is None:
        return
    permission, sources = dead.allows.get("redrivePermission", "allowAll"), dead.allows.get("sourceQueueArns")
    if dead.fifo is not queue.fifo:
        says = f"one of {queue.name} and its dead-letter queue {dead.name} is a FIFO queue, and the other is not"
        why = "SQS moves nothing between them, and a message that always fails blocks or is dropped"
        yield Finding("error", check, says, why, "give the queue a dead-letter queue of its own kind", _DEAD)
    elif permission == "denyAll" or (
        permission == "byQueue" and (not isinstance(sources, list) or queue.arn not in sources)
    ):
        says = f"{dead.name} does not allow {queue.name} to use it ({permission})"
        fix = f"add {queue.arn} to its RedriveAllowPolicy"
        yield Finding("error", check, says, "SQS cannot move messages there", fix, _ALLOW)
    else:
        yield Finding("ok", check, f"{dead.name} takes messages of {queue.name} after {queue.receives} receives")


def _alone(queue: QueueSettings, facts: Facts) -> Finding:
    limit, when = facts.policy.max_attempts, f"{days(queue.retention)} after it was sent"
    by_lambda = bool(facts.triggers) or facts.function is not None
    fix = "give the queue a RedrivePolicy"
    if not by_lambda:
        why = (
            f"`onceward work` and SqsWorker keep a message that always fails in the ledger, after {limit or ATTEMPTS} attempts. "
            f"With any other consumer, SQS drops it {when}"
        )
    elif limit is None:
        why = f"if a message always fails, SQS drops it {when}, without a trace"
        fix += ", or the guard max_attempts="
    else:
        why = f"if a message always fails, its key is parked after {limit} attempts, and SQS drops the message {when}"
    level: Level = "error" if by_lambda and limit is None else "warning"
    return Finding(level, "dead letters", f"{queue.name} has no dead-letter queue", why, fix, _DEAD)


def dead_letter_retention(queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    """Check that dead letters stay for long enough to be looked at.

    In standard queues a message's age continues when it is moved; in FIFO queues it starts anew (SQS Developer Guide,
    "Setting-up dead-letter queue retention").
    """
    check, dead = "dead-letter retention", facts.dead
    if dead is None:
        return
    says = f"{dead.name} keeps messages for {days(dead.retention)}, and {queue.name} {days(queue.retention)}"
    if dead.retention > queue.retention or (queue.fifo and dead.retention == queue.retention):
        yield Finding("ok", check, says)
        return
    why = "a message may be gone before anybody has seen it there"
    if not queue.fifo:
        why += ": its age is counted from when it was first sent"
    fix = f"give {dead.name} a MessageRetentionPeriod of 1209600"
    if dead.retention >= 1209600:
        fix = f"give {queue.name} a shorter MessageRetentionPeriod than 1209600, which is the longest"
    level: Level = "error" if dead.retention < queue.retention and not queue.fifo else "warning"
    yield Finding(level, check, says, why, fix, _KEPT)


def receives(queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    """Check that a message is tried often enough before it becomes a dead letter, and that the guard's attempts fit."""
    limit = facts.policy.max_attempts
    if queue.dead_letters is None:
        return
    check, says = (
        "maxReceiveCount",
        f"{queue.name} moves a message to its dead-letter queue after {queue.receives} receive(s)",
    )
    fix = f"give it a maxReceiveCount of {LAMBDA_RECEIVES} or more"
    if queue.receives < _FEW:
        why = "each worker that is stopped or meets a busy key costs a receive, so good messages become dead letters"
        yield Finding("error", check, says, why, fix, _DEAD)
    elif queue.receives < LAMBDA_RECEIVES and facts.triggers:
        why = "Lambda also receives messages when the function is throttled, and does not run it"
        yield Finding("warning", check, says, why, fix, LAMBDA)
    elif limit is not None and limit > queue.receives:
        why = "the guard's limit is never reached: the queue's is first"
        fix = f"give it a maxReceiveCount above {limit}, or a smaller max_attempts"
        yield Finding("warning", check, f"{says}, and max_attempts is {limit}", why, fix)
    else:
        yield Finding("ok", check, says)


def retention(queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    """Check that the ledger remembers what is done for as long as a message can come again."""
    check, span, dead = "retention", facts.policy.retention, facts.dead
    if span is None:
        yield Finding("ok", check, "the ledger never forgets what is done")
        return
    says, again = f"the ledger forgets what is done after {days(span)}", "a message that comes again later runs again"
    # With one visibility to spare; and nothing is received after the queue has dropped it.
    retries = min(queue.delay + queue.visibility * (queue.receives + 1), queue.retention)
    whole = queue.retention if dead is None else dead.retention + (queue.retention if queue.fifo else 0)
    if span < max(retries, queue.retention):
        longest = f"{queue.name} keeps messages for {days(queue.retention)}"
        if span < retries:
            longest = f"all receives of a message may take {days(retries)} (visibility times maxReceiveCount, and one to spare)"
        fix = f"give a retention of at least {max(retries, queue.retention, whole)} s"
        yield Finding("error", check, f"{says}, and {longest}", again, fix)
    elif span < whole and dead is not None:
        says += f", and {dead.name} may hold a message until {days(whole)} after it was sent"
        why = f"after a redrive, {again}, although it was completed"
        yield Finding("warning", check, says, why, f"give a retention of at least {whole} s", _KEPT)
    elif queue.dead_letters is not None and dead is None:
        says += "; how long the dead-letter queue holds a message is not known"
        why = f"after a redrive, {again}, although it was completed"
        yield Finding("skipped", check, says, why, "run doctor again when it can read the dead-letter queue", _KEPT)
    else:
        yield Finding("ok", check, f"{says}, and a message cannot come so late")


def lease(queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    """Check that redeliveries do not use up a message's receives while the key of a dead worker is still claimed."""
    check, held = "lease", facts.policy.lease
    if queue.visibility == 0:
        says, why = (
            f"the visibility timeout of {queue.name} is 0",
            "others receive a message while it is handled, and each costs a receive",
        )
        yield Finding(
            "error", "visibility", says, why, "give it a VisibilityTimeout longer than a handler takes", _VISIBLE
        )
        return
    vain = max(0, math.ceil(held / queue.visibility) - 1)
    says = f"a lease is {held:g} s, and a message of {queue.name} comes again after {queue.visibility} s"
    if vain == 0 or (vain == 1 and (queue.dead_letters is None or queue.receives > _FEW)):
        room = "nothing counts receives" if queue.dead_letters is None else f"there are {queue.receives} receives"
        harmless = f"; one receive in vain after a worker dies does no harm, because {room}" if vain else ""
        yield Finding("ok", check, says + harmless)
        return
    why = f"when a worker dies, its messages are received {vain} time(s) in vain, because their keys are still claimed"
    fix = f"give a lease of at most {queue.visibility} s (it is renewed while the handler runs), or a longer visibility timeout"
    level: Level = "warning"
    if facts.triggers and held > queue.visibility >= max(trigger.timeout for trigger in facts.triggers):
        why = f"unless on_sqs handles them, whose leases end with the invocation: {why}"
    elif queue.dead_letters is not None and vain + 2 > queue.receives:
        level, why = "error", f"{why}, and become dead letters without another attempt"
    yield Finding(level, check, says, why, fix, _VISIBLE)


QUEUE_CHECKS: Final = (dead_letters, dead_letter_retention, receives, retention, lease, functions)
