"""What is unsafe about the settings of a queue, its consumers and their ledger: facts in, findings out.

No I/O: ``look.py`` reads the facts; ``queue.py`` and ``mapping.py`` hold the checks, and each store those of its ledger.
"""

from onceward.aws.doctor.facts import Facts
from onceward.aws.doctor.mapping import LAMBDA_CHECKS
from onceward.aws.doctor.queue import QUEUE_CHECKS
from onceward.stores.inspection import LEVELS, Finding


def diagnosis(facts: Facts) -> list[Finding]:
    """Return what all checks find, the worst first."""
    found = [finding for check in (*QUEUE_CHECKS, *LAMBDA_CHECKS) for finding in check(facts)]
    ledger = () if facts.ledger is None else facts.ledger.findings()
    return sorted([*facts.gaps, *found, *ledger], key=lambda finding: LEVELS.index(finding.level))
