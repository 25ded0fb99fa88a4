"""The states of a record, from the tables by which the code decides."""

from generated.markdown import table
from onceward.core.protocol import RULES, SINGLE_USE, Rule, Verdict
from transitions import ABSENT, TRANSITIONS

_HEAD = """## The states of a record

Each record has a status. The tables here are those of the code: `RULES` in `core/protocol.py`, and the changes by which
the interleaving explorer of the tests checks every write.

![The statuses of a record, and their changes](../explanation/pictures/states.svg)

A word on an arrow names a change. The table has the condition of each change. The store checks the condition in the same atomic
write. A person can also park a live claim, or clear any record, if it has not changed since they saw it.

Most names of changes are in the [glossary](glossary.md). *keep* means that a record gets a message that
[no dead-letter queue takes](sqs.md#without-a-dead-letter-queue). *transact* is claim, effect and completion
[in one write](transactions.md). *step* records a [step](steps.md) of the handler.

"""
_DECISIONS = """
### What a worker does about the record that it meets

The first row that is true decides. The time is always the store's, never the worker's. With START or NEXT, the record is free.
The worker then claims it by a write that the store makes only if the record has not changed.

"""
_SINGLE = """
### When a client made the owner id

A client of the [service](service.md) makes the id of each claim itself. For such claims, these rows replace the row with WON. So if the client
repeats its request during the lease, it gets the same claim. An id cannot win a second claim on its key.

"""


def _row(rule: Rule) -> tuple[str, str, Verdict]:
    statuses = "any" if rule.statuses is None else " or ".join(sorted(rule.statuses)) or "any not known to this version"
    return statuses, ", ".join(condition.__name__.replace("_", " ") for condition in rule.conditions), rule.verdict


def part() -> str:
    """Return the section."""
    rules = [(ABSENT, "", Verdict.START), *map(_row, RULES)]
    single = [_row(rule) for rule in SINGLE_USE if rule not in RULES]
    head = ("the record's status", "and", "verdict", "what the worker does")
    return "".join(
        (
            _HEAD,
            table(("from", "change", "to", "condition"), TRANSITIONS),
            _DECISIONS,
            table(head, [(status, when, verdict.name, verdict.value) for status, when, verdict in rules]),
            _SINGLE,
            table(head, [(status, when, verdict.name, verdict.value) for status, when, verdict in single]),
        )
    )
