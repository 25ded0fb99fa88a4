"""Draw docs/explanation/states.md from the tables of the protocol: ``python docs/draw_states.py``; with ``--check`` only compare."""

import sys
from pathlib import Path

from onceward.core.protocol import RULES, SINGLE_USE, Verdict
from onceward.core.transitions import ABSENT, TRANSITIONS

PAGE = Path(__file__).with_name("explanation") / "states.md"

HEAD = """# The states of a record

<!-- Drawn by `python docs/draw_states.py`. Do not edit. -->
Each key has one record, and each record has a status. This page shows every change of a status, and what a worker does about the record that it meets.
It is drawn from the tables by which the code decides: `TRANSITIONS` in `core/transitions.py` and `RULES` in `core/protocol.py`.

## Every change of a record

![The statuses of a record, and the steps that change them](pictures/states.svg)

A word on an arrow is the step that makes the change. The table below also has the condition, which the store checks in the same atomic
write. A person can also clear a record of any status, if it is still the one that they saw.
"""

DECISIONS = """## What a worker does about the record that it meets

The first row that holds decides. "Now" is always the store's own time, never the worker's. A record is *free* if it says START or NEXT.
A claim takes a free record by a write that is made only if the record is still the one seen.
"""


SINGLE = """## When a client made the owner id

A client of the [service](../reference/service.md) makes the id of each claim itself. These rows replace the one
that says WON. So a repeated request counts within the lease that it won, and an id wins no second claim on its key.
"""


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page() -> str:
    """Return the whole page."""
    changes = [(source, step, target, condition) for source, step, target, condition in TRANSITIONS]
    rules = [(ABSENT, "", Verdict.START), *((rule.status, rule.when, rule.verdict) for rule in RULES)]
    decisions = [(status, when, verdict.name, verdict.value) for status, when, verdict in rules]
    added = [rule for rule in SINGLE_USE if rule not in RULES]
    single = [(rule.status, rule.when, rule.verdict.name, rule.verdict.value) for rule in added]
    return "\n".join(
        (
            HEAD,
            table(("from", "step", "to", "condition"), changes),
            DECISIONS,
            table(("record held", "and", "verdict", "which means"), decisions),
            SINGLE,
            table(("record held", "and", "verdict", "which means"), single),
        )
    )


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is out of date: run python docs/draw_states.py")
