"""The states of a record, from the tables by which the code decides."""

from generated.markdown import table
from onceward.core.protocol import RULES, SINGLE_USE, Verdict
from onceward.core.transitions import ABSENT, TRANSITIONS

_HEAD = """## The states of a record

Each record has a status. `TRANSITIONS` in `core/transitions.py` and `RULES` in `core/protocol.py` are the tables by which the code
decides, and these are the same.

![The statuses of a record, and the steps that change them](../explanation/pictures/states.svg)

A word on an arrow is the step that makes the change. The table has its condition, which the store checks in the same atomic write.
A person can also clear a record of any status, if it is still the one that they saw.

"""
_DECISIONS = """
### What a worker does about the record that it meets

The first row that holds decides. "Now" is always the store's own time, never the worker's. A record is *free* if it says START or NEXT.
A claim takes a free record by a write that is made only if the record is still the one seen.

"""
_SINGLE = """
### When a client made the owner id

A client of the [service](service.md) makes the id of each claim itself. These rows replace the one that says WON. So a repeated
request counts within the lease that it won, and an id wins no second claim on its key.

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
