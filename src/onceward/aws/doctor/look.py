"""Reads the facts that the checks of ``checks.py`` are about. Nothing is changed anywhere."""

from collections.abc import Iterator
from typing import Final

from onceward.aws.doctor.checks import QUEUE_CHECKS, Facts, Trigger, days
from onceward.aws.sqs.address import address_of
from onceward.aws.sqs.queue import Queue, QueueSettings
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.selections import DueWithin
from onceward.stores.capabilities import EXISTS, INSPECT, OUTBOX
from onceward.stores.contract import Page, Store
from onceward.stores.inspection import LEVELS, Finding, Gaps, Inspected
from onceward.wire.credentials import client_of


def facts_of(
    policy: Policy, queue: str | None = None, function: str | None = None, store: Store | None = None
) -> Facts:
    """Return what is so with a queue, its functions and a ledger, for a consumer whose guard has this policy.

    ``function`` is the name or ARN of a Lambda function that the queue must have; None means all functions of the queue.

    Raises:
        ValueError: ``queue`` is not a queue's URL, ARN or name.
    """
    gaps = Gaps()
    settings = None if queue is None else gaps.read("queue", lambda: _settings(Queue(queue)))
    dead, triggers, (ledger, overdue) = None, None, _ledger(store, gaps)
    if queue is not None and settings is not None:
        if (arn := settings.dead_letters) is not None:
            endpoint = address_of(queue).endpoint
            dead = gaps.read("dead letters", lambda: _settings(Queue(arn, endpoint=endpoint)))
        try:
            triggers = _triggers(settings.arn)
        except Exception as error:  # botocore's errors have no root of their own; or it is not installed
            fix = "install botocore, and allow lambda:ListEventSourceMappings and lambda:GetFunctionConfiguration"
            says = f"Lambda's mappings of {settings.name} could not be read: {error}"
            gaps.note("event source mapping", says, fix, is_needed=function is not None)
    called = None if function is None else _name(function)
    return Facts(policy, settings, dead, triggers, called, ledger, overdue, gaps.findings)


def _ledger(store: Store | None, gaps: Gaps) -> tuple[Inspected | None, float]:
    """Return the facts about a ledger, and for how many seconds it has messages that nobody sends."""
    if store is None:
        return None, 0.0
    inspect, exists, ready = INSPECT.of(store), EXISTS.of(store), OUTBOX.of(store)
    if inspect is None:
        gaps.note("ledger", f"doctor cannot read ledgers like {store.url}", "", is_needed=False)
        return None, 0.0
    ledger, page = gaps.read("ledger", inspect), None

    def due() -> Page | None:
        if ready is None or (exists is not None and not exists()):
            return None
        drive(ready(), store)
        return drive(store.select(DueWithin(), None, 1), store)

    if ledger is not None and not any(one.level == "error" for one in ledger.findings()):
        page = gaps.read("messages", due)
    return ledger, 0.0 if page is None or not page.records else page.now - (page.records[0].due_at or page.now)


def _settings(queue: Queue) -> QueueSettings:
    try:
        return QueueSettings.read(queue.attributes())
    finally:
        queue.close()


def _name(function: str) -> str:
    """Return a function's name, of that or of an ARN, with or without an alias or version."""
    parts = function.split(":")
    return parts[6] if function.startswith("arn:") and len(parts) > 6 else parts[0]


def _triggers(arn: str) -> tuple[Trigger, ...]:
    client = client_of("lambda", arn)
    triggers = []
    for page in client.get_paginator("list_event_source_mappings").paginate(EventSourceArn=arn):
        for mapping in page["EventSourceMappings"]:
            configuration = client.get_function_configuration(FunctionName=mapping["FunctionArn"])
            triggers.append(
                Trigger(
                    function=configuration["FunctionName"],
                    timeout=configuration["Timeout"],
                    partial="ReportBatchItemFailures" in (mapping.get("FunctionResponseTypes") or ()),
                    window=mapping.get("MaximumBatchingWindowInSeconds") or 0,
                )
            )
    return tuple(triggers)


_LONG: Final = 600.0  # seconds: relays look every minute, and a target that fails is tried after 5 minutes


def diagnosis(facts: Facts) -> list[Finding]:
    """Return what all checks find, the worst first."""
    findings = list(facts.gaps)
    if facts.queue is not None:
        for check in QUEUE_CHECKS:
            findings += check(facts.queue, facts)
    if facts.ledger is not None:
        findings += facts.ledger.findings()
        findings += _messages(facts.overdue)
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _messages(overdue: float) -> Iterator[Finding]:
    """Check that somebody sends what crashed processes leave. A message that was tried in vain is not due."""
    if overdue >= _LONG:
        says = f"the longest message is due for {days(overdue)}, and nobody has tried to send it since"
        why = "a process that sent it has ended, and no relay runs on this ledger, or none knows its target or its seal"
        yield Finding("warning", "messages", says, why, "run `onceward relay` (docs/reference/outbox.md)")
