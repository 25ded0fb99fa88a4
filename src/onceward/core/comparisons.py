"""Comparisons of a record as data: Python evaluates them, and a store prints them in its own language.

``Every((Comparison("status", "=", PARKED), Comparison("updated_at", "<=", 60.0)))``: parked, and not written for the last minute.
"""

import operator
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from onceward.core.record import Record

Sign = Literal["=", "<>", "<=", ">=", "absent"]
SIGNS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
}


class Comparison(NamedTuple):
    """A field compared with a text, or with the moment so many seconds before the store's time.

    A field that is None passes only "absent".
    """

    field: str
    sign: Sign
    value: str | float = 0.0


class Every(NamedTuple):
    """All of the terms hold."""

    terms: tuple["Clause", ...]


class Either(NamedTuple):
    """At least one of the terms holds."""

    terms: tuple["Clause", ...]


Clause = Comparison | Every | Either


def meets(record: Record, clause: Clause, now: float) -> bool:
    """Return whether ``record`` meets ``clause`` at the store's time ``now``."""
    if isinstance(clause, Every):
        return all(meets(record, term, now) for term in clause.terms)
    if isinstance(clause, Either):
        return any(meets(record, term, now) for term in clause.terms)
    value = getattr(record, clause.field)
    if clause.sign == "absent" or value is None:
        return value is None and clause.sign == "absent"
    other = clause.value if isinstance(clause.value, str) else now - clause.value
    return SIGNS[clause.sign](value, other)
