"""The checks of the Lambda functions that a queue calls."""

from collections.abc import Iterator
from typing import Final

from onceward.aws.doctor.facts import Check, Facts, QueueSettings, Trigger
from onceward.stores.inspection import Finding

_LAMBDA: Final = "Lambda Developer Guide, Creating and configuring an Amazon SQS event source mapping"
_PARTIAL: Final = "Lambda Developer Guide, Handling errors for an SQS event source in Lambda"
_CONCURRENCY: Final = "Lambda Developer Guide, Configuring scaling behavior for SQS event source mappings"

_FILTERS: Final = "Lambda Developer Guide, Using event filtering with an Amazon SQS event source"

_TIMEOUTS: Final = 6
_FEWEST: Final = 2  # invocations: the smallest MaximumConcurrency


def functions(facts: Facts) -> Iterator[Finding]:
    """Check the event source mappings, if there are any."""
    if facts.queue is None or facts.triggers is None:
        return
    named = [trigger for trigger in facts.triggers if facts.function in {None, trigger.function}]
    if facts.function is not None and not named:
        yield Finding(
            "error",
            "event source mapping",
            f"{facts.function} has none for {facts.queue.name}",
            "nothing of the queue comes to the function",
            f"create one, with FunctionResponseTypes=ReportBatchItemFailures and EventSourceArn={facts.queue.arn}",
            _LAMBDA,
        )
    on = {trigger.function for trigger in facts.triggers if trigger.enabled}
    filtered = sorted({trigger.function for trigger in facts.triggers if trigger.enabled and trigger.filtered})
    if filtered:
        yield Finding(
            "error" if len(on) > 1 else "warning",
            "filter",
            f"the event source mapping of {' and '.join(filtered)} has a filter",
            "what it does not let through is deleted from the queue, and no other function gets it",
            "filter before the queue, as in the subscription of a topic, with a queue for each function; or in the handler",
            _FILTERS,
        )
    if len(on) > 1:
        yield Finding(
            "warning",
            "event source mapping",
            f"{facts.queue.name} calls {' and '.join(sorted(on))}",
            "each message goes to one of them, whichever is first, and their keys have different namespaces unless name= is given",
            "give each function a queue of its own",
        )
    for trigger in named:
        yield from _partial(trigger)
        yield from _timeout(trigger, facts.queue, facts)
        yield from _throttled(trigger)


def _partial(trigger: Trigger) -> Iterator[Finding]:
    check = "partial responses"
    if not trigger.enabled:
        yield Finding(
            "warning", "event source mapping", f"that of {trigger.function} is off", "it gets no messages", "enable it"
        )
    if trigger.partial:
        yield Finding("ok", check, f"Lambda heeds what {trigger.function} reports")
    else:
        yield Finding(
            "error",
            check,
            f"the event source mapping of {trigger.function} has no ReportBatchItemFailures",
            "Lambda ignores which messages the handler reports as failed, and deletes them with the others: they are lost",
            "set FunctionResponseTypes=ReportBatchItemFailures, or give on_sqs partial=False until then",
            _PARTIAL,
        )


def _timeout(trigger: Trigger, queue: QueueSettings, facts: Facts) -> Iterator[Finding]:
    check = "function timeout"
    wanted = _TIMEOUTS * trigger.timeout + trigger.window
    window = f" and a batching window of {trigger.window} s" if trigger.window else ""
    says = f"{trigger.function} has a timeout of {trigger.timeout} s{window}, and {queue.name} a visibility of {queue.visibility} s"
    if queue.visibility < trigger.timeout:
        yield Finding(
            "error",
            check,
            says,
            "messages come again while they are handled, and each time costs a receive",
            f"give the queue a visibility timeout of {wanted} s, or the function a shorter timeout",
            _LAMBDA,
        )
    elif queue.visibility < wanted:
        yield Finding(
            "warning",
            check,
            says,
            "Lambda needs time to try again when the function is throttled: six timeouts and the window",
            f"give the queue a visibility timeout of {wanted} s",
            _LAMBDA,
        )
    else:
        yield Finding("ok", check, says)
    if facts.policy.lease < trigger.timeout:
        yield Finding(
            "ok",
            "lease",
            f"a lease is {facts.policy.lease:g} s, shorter than the timeout of {trigger.function}, and renewed while the handler "
            "runs; with heartbeat=0 it must be longer than the timeout",
        )
    if facts.ledger is not None and facts.ledger.is_local:
        yield Finding(
            "error",
            "ledger",
            f"{trigger.function} is a Lambda function, and its ledger is of one host only",
            "each of the function's environments has a disk of its own, so none knows what the others have done",
            "give it a ledger in DynamoDB: `onceward init --store dynamodb://TABLE`",
        )


def _throttled(trigger: Trigger) -> Iterator[Finding]:
    limit, reserved = trigger.concurrency, trigger.reserved
    if reserved == 0:
        yield Finding(
            "error",
            "concurrency",
            f"{trigger.function} has a reserved concurrency of 0, so it never runs",
            "messages that are received for it all the same become dead letters, or are dropped",
            "take it away; to stop the function for a while, disable its event source mapping instead",
            _CONCURRENCY,
        )
    elif reserved is not None and (limit is None or limit > reserved):
        yield Finding(
            "warning",
            "concurrency",
            f"{trigger.function} has a reserved concurrency of {reserved}, and its event source mapping "
            + ("no maximum" if limit is None else f"a maximum of {limit}"),
            "messages are received for invocations that are then throttled, and each time costs a receive",
            f"give the mapping a MaximumConcurrency of {max(_FEWEST, reserved)}"
            + (f", and the function a reserved concurrency of {_FEWEST}" if reserved < _FEWEST else " or less"),
            _CONCURRENCY,
        )


LAMBDA_CHECKS: Final[tuple[Check, ...]] = (functions,)
