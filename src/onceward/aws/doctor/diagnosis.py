"""What is unsafe about the settings of a queue, its consumers and their ledger. No I/O: ``look.py`` reads the facts."""

from collections.abc import Iterator
from typing import Final

from onceward.aws.doctor.facts import Facts, days
from onceward.aws.doctor.mapping import functions
from onceward.aws.doctor.queue import QUEUE_CHECKS
from onceward.stores.inspection import LEVELS, Finding

_LONG: Final = 600.0  # seconds: relays look every minute, and a target that fails is tried after 5 minutes


def diagnosis(facts: Facts) -> list[Finding]:
    """Return what all checks find, the worst first."""
    found = list(facts.gaps)
    if facts.queue is not None:
        for check in (*QUEUE_CHECKS, functions):
            found += check(facts.queue, facts)
    if facts.ledger is not None:
        found += facts.ledger.findings()
        found += _messages(facts.overdue)
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _messages(overdue: float) -> Iterator[Finding]:
    """Check that somebody sends what crashed processes leave. A message that was tried in vain is not due."""
    if overdue >= _LONG:
        says = f"the longest message is due for {days(overdue)}, and nobody has tried to send it since"
        why = "a process that sent it has ended, and no relay runs on this ledger, or none knows its target or its seal"
        yield Finding("warning", "messages", says, why, "run `onceward relay` (docs/reference/outbox.md)")
