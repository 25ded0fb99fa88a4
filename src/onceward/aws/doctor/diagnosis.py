"""What is unsafe about the settings of a queue, its consumers and their ledger. No I/O: ``look.py`` reads the facts."""

from onceward.aws.doctor.facts import Facts
from onceward.aws.doctor.mapping import functions
from onceward.aws.doctor.queue import QUEUE_CHECKS
from onceward.stores.inspection import LEVELS, Finding


def diagnosis(facts: Facts) -> list[Finding]:
    """Return what all checks find, the worst first."""
    found = list(facts.gaps)
    if facts.queue is not None:
        for check in (*QUEUE_CHECKS, functions):
            found += check(facts.queue, facts)
    if facts.ledger is not None:
        found += facts.ledger.findings()
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
