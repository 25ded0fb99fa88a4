"""The checks of a queue and its dead-letter queue, against the options of the consumer."""

import math
from collections.abc import Iterator
from typing import Final

from onceward.aws.doctor.facts import Check, Facts, QueueSettings, days
from onceward.aws.sqs.facts import ATTEMPTS
from onceward.stores.inspection import Finding

_DEAD: Final = "SQS Developer Guide, Using dead-letter queues in Amazon SQS"
_KEPT: Final = "SQS Developer Guide, Setting-up dead-letter queue retention in Amazon SQS"
_ALLOW: Final = "SQS API Reference, SetQueueAttributes (RedriveAllowPolicy)"
_POLLING: Final = "SQS Developer Guide, Setting-up long polling in Amazon SQS"
_VISIBLE: Final = "SQS Developer Guide, Amazon SQS visibility timeout"
_DEDUP: Final = "SQS Developer Guide, Using the message deduplication ID in Amazon SQS"
_LAMBDA: Final = "Lambda Developer Guide, Creating and configuring an Amazon SQS event source mapping"

_FEW: Final = 3  # one for a worker that died, one that met its lease, and one that succeeds
_LAMBDA_RECEIVES: Final = 5


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """Check that a message which always fails ends where somebody sees it."""
    queue, limit = facts.queue, facts.policy.max_attempts
    if queue is None:
        return
    check = "dead letters"
    if queue.dead_letters is None:
        yield _alone(queue, limit, by_lambda=bool(facts.triggers) or facts.function is not None)
    elif facts.dead is not None:
        yield from _pair(queue, facts.dead, check)


def _alone(queue: QueueSettings, limit: int | None, *, by_lambda: bool) -> Finding:
    gone = days(queue.retention)
    fix = "give the queue a RedrivePolicy"
    if not by_lambda:
        why = (
            f"`onceward sqs` and SqsWorker keep a message that always fails in the ledger, after {limit or ATTEMPTS} attempts; of "
            f"any other consumer, SQS drops it {gone} after it was sent"
        )
    elif limit is None:
        why = f"of a message that always fails, SQS drops it {gone} after it was sent, without a trace"
        fix += ", or the guard max_attempts="
    else:
        why = f"of a message that always fails, its key is parked after {limit} attempts, and the message is dropped {gone} after it was sent"
    unsafe = by_lambda and limit is None
    return Finding(
        "error" if unsafe else "warning", "dead letters", f"{queue.name} has no dead-letter queue", why, fix, _DEAD
    )


def _pair(queue: QueueSettings, dead: QueueSettings, check: str) -> Iterator[Finding]:
    permission = dead.allows.get("redrivePermission", "allowAll")
    named = dead.allows.get("sourceQueueArns")
    if dead.fifo is not queue.fifo:
        yield Finding(
            "error",
            check,
            f"one of {queue.name} and its dead-letter queue {dead.name} is a FIFO queue, and the other is not",
            "SQS moves nothing between them, and a message that always fails blocks or is dropped",
            "give the queue a dead-letter queue of its own kind",
            _DEAD,
        )
    elif permission == "denyAll" or (
        permission == "byQueue" and (not isinstance(named, list) or queue.arn not in named)
    ):
        yield Finding(
            "error",
            check,
            f"{dead.name} does not allow {queue.name} to use it ({permission})",
            "SQS cannot move messages there",
            f"add {queue.arn} to its RedriveAllowPolicy",
            _ALLOW,
        )
    else:
        yield Finding("ok", check, f"{dead.name} takes messages of {queue.name} after {queue.receives} receives")


def dead_letter_retention(facts: Facts) -> Iterator[Finding]:
    """Check that dead letters stay for long enough to be looked at.

    In standard queues a message's age goes on when it is moved; in FIFO queues it starts anew (SQS Developer Guide,
    "Setting-up dead-letter queue retention").
    """
    queue, dead = facts.queue, facts.dead
    if queue is None or dead is None:
        return
    check, both = "dead-letter retention", f"{days(dead.retention)}, and {queue.name} {days(queue.retention)}"
    if dead.retention > queue.retention or (queue.fifo and dead.retention == queue.retention):
        yield Finding("ok", check, f"{dead.name} keeps messages for {both}")
        return
    fix = f"give {dead.name} a MessageRetentionPeriod of 1209600"
    if dead.retention >= 1209600:
        fix = f"give {queue.name} a shorter MessageRetentionPeriod than 1209600, which is the longest"
    yield Finding(
        "error" if dead.retention < queue.retention and not queue.fifo else "warning",
        check,
        f"{dead.name} keeps messages for {both}",
        "a message may be gone before anybody has seen it there"
        + ("" if queue.fifo else ": its age is counted from when it was first sent"),
        fix,
        _KEPT,
    )


def receives(facts: Facts) -> Iterator[Finding]:
    """Check that a message is tried often enough before it becomes a dead letter, and the guard's attempts fit."""
    queue, limit = facts.queue, facts.policy.max_attempts
    if queue is None or queue.dead_letters is None:
        return
    check, says = "maxReceiveCount", f"{queue.name} gives a message up after {queue.receives} receive(s)"
    if queue.receives < _FEW:
        yield Finding(
            "error",
            check,
            says,
            "each worker that is stopped or meets a busy key costs a receive, so messages end as dead letters that nothing is wrong "
            "with",
            f"give it a maxReceiveCount of {_LAMBDA_RECEIVES} or more",
            _DEAD,
        )
    elif queue.receives < _LAMBDA_RECEIVES and facts.triggers:
        yield Finding(
            "warning",
            check,
            says,
            "Lambda also receives messages when the function is throttled, and does not run it",
            f"give it a maxReceiveCount of {_LAMBDA_RECEIVES} or more",
            _LAMBDA,
        )
    elif limit is not None and limit > queue.receives:
        yield Finding(
            "warning",
            check,
            f"{says}, and max_attempts is {limit}",
            "the guard's limit is never reached: the queue's is first",
            f"give it a maxReceiveCount above {limit}, or a smaller max_attempts",
        )
    else:
        yield Finding("ok", check, says)


def retention(facts: Facts) -> Iterator[Finding]:
    """Check that the ledger remembers what is done for as long as a message can come again."""
    queue, kept = facts.queue, facts.policy.retention
    if queue is None:
        return
    check = "retention"
    if kept is None:
        yield Finding("ok", check, "the ledger remembers for ever what is done")
        return
    says, again = f"the ledger forgets after {days(kept)} what is done", "a message that comes again later runs again"
    # With one visibility to spare; and nothing is received after the queue has dropped it.
    retries = min(queue.delay + queue.visibility * (queue.receives + 1), queue.retention)
    whole = queue.retention if facts.dead is None else facts.dead.retention + (queue.retention if queue.fifo else 0)
    if kept < max(retries, queue.retention):
        longest = (
            f"all receives of a message may take {days(retries)} (visibility times maxReceiveCount, and one to spare)"
            if kept < retries
            else f"{queue.name} keeps messages for {days(queue.retention)}"
        )
        yield Finding(
            "error",
            check,
            f"{says}, and {longest}",
            again,
            f"give a retention of at least {max(retries, queue.retention, whole)} s",
        )
    elif kept < whole and facts.dead is not None:
        yield Finding(
            "warning",
            check,
            f"{says}, and {facts.dead.name} may hold a message until {days(whole)} after it was sent",
            f"when it is redriven, {again}, although it was completed",
            f"give a retention of at least {whole} s",
            _KEPT,
        )
    elif queue.dead_letters is not None and facts.dead is None:
        yield Finding(
            "skipped",
            check,
            f"{says}; how long the dead-letter queue holds a message is not known",
            f"of what is redriven, {again}, although it was completed",
            "look again when the dead-letter queue can be looked at",
            _KEPT,
        )
    else:
        yield Finding("ok", check, f"{says}, and a message cannot come so late")


def lease(facts: Facts) -> Iterator[Finding]:
    """Check that redeliveries do not use up a message's receives while the key of a dead worker is still claimed."""
    queue, held = facts.queue, facts.policy.lease
    if queue is None:
        return
    check = "lease"
    if queue.visibility == 0:
        yield Finding(
            "error",
            "visibility",
            f"the visibility timeout of {queue.name} is 0",
            "others receive a message while it is handled, and each costs a receive",
            "give it a VisibilityTimeout longer than a handler takes",
            _VISIBLE,
        )
        return
    vain = max(0, math.ceil(held / queue.visibility) - 1)
    says = f"a lease is {held:g} s, and a message of {queue.name} comes again after {queue.visibility} s"
    if vain == 0:
        yield Finding("ok", check, says)
        return
    if vain == 1 and (queue.dead_letters is None or queue.receives > _FEW):
        room = "nothing counts receives" if queue.dead_letters is None else f"there are {queue.receives} receives"
        yield Finding("ok", check, f"{says}; one receive in vain after a worker dies does no harm, for {room}")
        return
    burns = (
        f"when a worker dies, its messages are received {vain} time(s) in vain, because their keys are still claimed"
    )
    fix = f"give a lease of at most {queue.visibility} s (it is renewed while the handler runs), or a longer visibility timeout"
    if facts.triggers and held > queue.visibility >= max(trigger.timeout for trigger in facts.triggers):
        burns = f"unless on_sqs handles them, whose leases end with the invocation: {burns}"
        yield Finding("warning", check, says, burns, fix, _VISIBLE)
    elif queue.dead_letters is not None and vain + 2 > queue.receives:
        yield Finding("error", check, says, f"{burns}, and become dead letters without another attempt", fix, _VISIBLE)
    else:
        yield Finding("warning", check, says, burns, fix, _VISIBLE)


def polling(facts: Facts) -> Iterator[Finding]:
    """Check that consumers wait for messages instead of asking for them again and again."""
    queue = facts.queue
    if queue is None:
        return
    if queue.wait == 0 and not facts.triggers:
        yield Finding(
            "warning",
            "polling",
            f"{queue.name} has ReceiveMessageWaitTimeSeconds 0",
            "a consumer that does not say how long it waits asks only some of the servers, and pays for answers without messages; "
            "`onceward sqs` says it",
            "give it 20",
            _POLLING,
        )
    else:
        yield Finding("ok", "polling", f"receives of {queue.name} wait for messages")


def content(facts: Facts) -> Iterator[Finding]:
    """Check what a FIFO queue takes for the same message."""
    queue = facts.queue
    if queue is None or not queue.fifo:
        return
    if queue.by_content:
        yield Finding(
            "warning",
            "deduplication",
            f"{queue.name} deduplicates by content",
            "two operations whose messages are alike, sent within 5 minutes, become one; message attributes are not compared",
            "switch ContentBasedDeduplication off, and send a MessageDeduplicationId for each operation, as onceward.aws.send does",
            _DEDUP,
        )
    else:
        yield Finding("ok", "deduplication", f"{queue.name} goes by the ids that senders give")


def delay(facts: Facts) -> Iterator[Finding]:
    """Tell of a delay, which counts towards a message's age."""
    if facts.queue is not None and facts.queue.delay:
        yield Finding(
            "ok", "delay", f"a message of {facts.queue.name} can be received {facts.queue.delay} s after it was sent"
        )


QUEUE_CHECKS: Final[tuple[Check, ...]] = (
    dead_letters,
    dead_letter_retention,
    receives,
    retention,
    lease,
    polling,
    content,
    delay,
)
