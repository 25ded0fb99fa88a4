"""Draw docs/states.md from the tables of the protocol: ``python docs/draw_states.py``; with ``--check`` only compare."""

import sys
from pathlib import Path

from onceward.core.protocol import ABSENT, RULES, TRANSITIONS, Verdict

PAGE = Path(__file__).with_name("states.md")

HEAD = """# What a record can be, and what a worker does about it

Drawn by `python docs/draw_states.py` from the tables `TRANSITIONS` and `RULES` in `src/onceward/core/protocol.py`, which
the code decides by. Do not edit.

## Every change of a record

On each arrow: the step that makes the change, and the condition that the store checks in the same atomic write. People may
also clear a record of any status, under the condition that it is the one they saw.
"""

DECISIONS = """## What a worker that wants a key does about the record it meets

The first row that holds decides. "Now" is always the store's own time, never the worker's. A record of which it says START or NEXT
is free: an insert can take it in the same request, if the store reads and writes in one. SQL stores print this table as one expression.
"""


def diagram() -> str:
    """Return the state diagram in mermaid's language (mermaid.js.org/syntax/stateDiagram.html)."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for source, step, target, condition in TRANSITIONS:
        start, end = ("[*]" if name == ABSENT else name for name in (source, target))
        lines.append(f"    {start} --> {end}: {step} ({condition})")
    return "\n".join([*lines, "```", ""])


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page() -> str:
    """Return the whole page."""
    changes = [(source, step, target, condition) for source, step, target, condition in TRANSITIONS]
    rules = [(ABSENT, "", Verdict.START), *((rule.status, rule.when, rule.verdict) for rule in RULES)]
    decisions = [(status, when, verdict.name, verdict.value) for status, when, verdict in rules]
    return "\n".join(
        (
            HEAD,
            diagram(),
            table(("from", "step", "to", "condition"), changes),
            DECISIONS,
            table(("record held", "and", "verdict", "which means"), decisions),
        )
    )


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is out of date: run python docs/draw_states.py")
