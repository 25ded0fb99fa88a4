"""Reads the facts that the checks of ``queue.py`` and ``mapping.py`` are about. Nothing is changed anywhere."""

from collections.abc import Iterator
from typing import Final

from onceward.aws.doctor.mapping import Facts, Trigger, days, functions
from onceward.aws.doctor.queue import QUEUE_CHECKS
from onceward.aws.sqs.queue import Queue, QueueSettings
from onceward.aws.sqs.queue_steps import address_of
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.selections import DueWithin
from onceward.stores.capabilities import EXISTS, INSPECT, OUTBOX
from onceward.stores.contract import Page, Store
from onceward.stores.inspection import LEVELS, Finding, Gaps
from onceward.wire.credentials import client_of


class Inspection:
    """One look at a queue, its functions and a ledger, for a consumer whose guard has this policy.

    ``function`` is the name or ARN of a Lambda function that the queue must have; None means all functions of the queue.

    Attributes:
        facts: what was seen.
    """

    def __init__(self, policy: Policy, function: str | None = None) -> None:
        self._gaps = Gaps()
        self.facts = Facts(policy, function=None if function is None else _name(function), gaps=self._gaps.findings)

    def queue(self, name: str) -> None:
        """Look at a queue, its dead-letter queue, and its event source mappings.

        Raises:
            ValueError: it is not a queue's URL, ARN or name.
        """
        queue = self._gaps.read("queue", lambda: _settings(Queue(name)))
        if queue is None:
            return
        self.facts = self.facts._replace(queue=queue)
        arn, endpoint = queue.dead_letters, address_of(name).endpoint
        if arn is not None:
            dead = self._gaps.read("dead letters", lambda: _settings(Queue(arn, endpoint=endpoint)))
            self.facts = self.facts._replace(dead=dead)
        self._functions(queue)

    def ledger(self, store: Store) -> None:
        """Look at a ledger."""
        inspect = INSPECT.of(store)
        if inspect is None:
            self._gaps.note("ledger", f"doctor cannot read ledgers like {store.url}", "", is_needed=False)
        elif (inspected := self._gaps.read("ledger", inspect)) is not None:
            self.facts = self.facts._replace(ledger=inspected)
            if not any(one.level == "error" for one in inspected.findings()):
                self._messages(store)

    def _messages(self, store: Store) -> None:
        """Look for messages that nobody sends."""
        exists, ready = EXISTS.of(store), OUTBOX.of(store)
        if ready is None or (exists is not None and not exists()):
            return

        def look() -> Page:
            drive(ready(), store)
            return drive(store.select(DueWithin(), None, 1), store)

        page = self._gaps.read("messages", look)
        if page is not None and page.records:
            self.facts = self.facts._replace(overdue=page.now - (page.records[0].due_at or page.now))

    def _functions(self, queue: QueueSettings) -> None:
        try:
            self.facts = self.facts._replace(triggers=_triggers(queue.arn))
        except Exception as error:  # botocore's errors have no root of their own; or it is not installed
            fix = "install botocore, and allow lambda:ListEventSourceMappings and lambda:GetFunctionConfiguration"
            says = f"Lambda's mappings of {queue.name} could not be read: {error}"
            self._gaps.note("event source mapping", says, fix, is_needed=self.facts.function is not None)


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
        for check in (*QUEUE_CHECKS, functions):
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
