"""The states of a record, from the tables by which the code decides."""

from generated.markdown import table
from onceward.core.protocol import RULES, SINGLE_USE, Verdict
from onceward.core.transitions import ABSENT, TRANSITIONS

_HEAD = """## The states of a record

Each record has a status. The tables here are those of the code: `TRANSITIONS` in `core/transitions.py`, and `RULES` in
`core/protocol.py`.

![The statuses of a record, and the steps that change them](../explanation/pictures/states.svg)

A word on an arrow is the step that makes the change. The table has the condition of each step. The store checks this condition in the
same atomic write. A person can also clear a record of any status, if it has not changed since they saw it.

"""
_DECISIONS = """
### What a worker does about the record that it meets

The first row that is true decides. "Now" is always the store's time, never the worker's. With START or NEXT, the record is free. The
worker then claims it by a write that the store makes only if the record has not changed.

"""
_SINGLE = """
### When a client made the owner id

A client of the [service](service.md) makes the id of each claim itself. These rows replace the row with WON. So a repeated
request gets the same claim during its lease. An id cannot win a second claim on its key.

"""


def part() -> str:
    """Return the section."""
    rules = [(ABSENT, "", Verdict.START), *((rule.status, rule.when, rule.verdict) for rule in RULES)]
    single = [(rule.status, rule.when, rule.verdict) for rule in SINGLE_USE if rule not in RULES]
    head = ("record held", "and", "verdict", "which means")
    return "".join(
        (
            _HEAD,
            table(("from", "step", "to", "condition"), TRANSITIONS),
            _DECISIONS,
            table(head, [(status, when, verdict.name, verdict.value) for status, when, verdict in rules]),
            _SINGLE,
            table(head, [(status, when, verdict.name, verdict.value) for status, when, verdict in single]),
        )
    )
