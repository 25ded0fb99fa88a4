"""The checks of a queue and its dead-letter queue, against the options of the consumer."""

import math
from collections.abc import Iterator
from typing import Final

from onceward.aws.doctor.mapping import LAMBDA, LAMBDA_RECEIVES, Facts, days
from onceward.aws.sqs.queue import QueueSettings
from onceward.consumers.broker import ATTEMPTS
from onceward.stores.inspection import Finding, Level

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


QUEUE_CHECKS: Final = (dead_letters, dead_letter_retention, receives, retention, lease)
