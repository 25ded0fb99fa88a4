"""What is unsafe about the settings of a queue, its consumers and their ledger: facts in, findings out.

No I/O: ``look.py`` reads the facts; ``queue.py``, ``mapping.py`` and ``ledger.py`` hold the checks.
"""

from onceward.aws.doctor.facts import LEVELS, Facts, Finding
from onceward.aws.doctor.ledger import LEDGER_CHECKS
from onceward.aws.doctor.mapping import LAMBDA_CHECKS
from onceward.aws.doctor.queue import QUEUE_CHECKS


def diagnosis(facts: Facts) -> list[Finding]:
    """Return what all checks find, the worst first."""
    found = [finding for check in (*QUEUE_CHECKS, *LAMBDA_CHECKS, *LEDGER_CHECKS) for finding in check(facts)]
    return sorted([*facts.gaps, *found], key=lambda finding: LEVELS.index(finding.level))
