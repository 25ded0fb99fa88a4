"""Finding records by status and age in SQL. This file alone prints the protocol's conditions on a record."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from onceward.core.comparisons import Clause, Comparison, Every
from onceward.core.protocol import STATUSES

LOOKED_AT: Final = 5000  # rows of one request, so that it ends in time also without an index


class Dialect(NamedTuple):
    """How a database tells the time.

    Attributes:
        now: the expression of the store's time.
        ago: the expression of an earlier moment, with ``{}`` for the seconds.
    """

    now: str
    ago: str


def printed(clause: Clause, dialect: Dialect) -> str:
    """Return a clause in SQL. NULL means no."""
    if isinstance(clause, Comparison):
        return _compared(clause, dialect)
    word, nothing = (" AND ", "true") if isinstance(clause, Every) else (" OR ", "false")
    return f"({word.join(printed(term, dialect) for term in clause.terms) or nothing})"


def _compared(clause: Comparison, dialect: Dialect) -> str:
    field, sign, value = clause
    if sign == "absent":
        return f"{field} IS NULL"
    if isinstance(value, str):
        return f"{field} {sign} '{value}'"
    moment = dialect.ago.format(f"{value:.6f}") if value else dialect.now
    return f"{field} {sign} {moment}"


def having(statuses: frozenset[str]) -> str:
    """Return the condition that a record has one of these statuses. A partial index and its queries need the same text."""
    rest = STATUSES - statuses
    if len(rest) == 1:
        return f"status <> '{next(iter(rest))}'"
    quoted = ", ".join(f"'{status}'" for status in sorted(statuses))
    return f"status IN ({quoted})"


# The joins of what :func:`looking` names: one row for each record found, or one without a record.
FOUND: Final = "tally l LEFT JOIN hits h ON true LEFT JOIN {table} t ON t.key = h.key ORDER BY h.key"


def looking(clause: Clause, table: str, keys: str, most: str, dialect: Dialect) -> str:
    """Return the tables of a page for ``WITH``: ``looked``, ``hits``, and ``tally`` of ``rows`` looked at and their ``last`` key.

    They look at a limited number of rows, in the order of their keys.

    Args:
        clause: which records are meant.
        table: its name, with what says which index to use.
        keys: the condition of the keys to look at, and of a partial index to look only at its rows.
        most: the parameter of the most records.
        dialect: of the database.
    """
    return (
        f"looked AS MATERIALIZED (SELECT key, {printed(clause, dialect)} AS hit FROM {table} "
        f"WHERE {keys} ORDER BY key LIMIT {LOOKED_AT}), "
        f"hits AS MATERIALIZED (SELECT key FROM looked WHERE hit ORDER BY key LIMIT {most}), "
        "tally AS (SELECT count(*) AS rows, max(key) AS last FROM looked)"
    )


def next_page(found: Sequence[str], limit: int, looked: int, last: str) -> str | None:
    """Return the key after which the next page begins; None after the last one.

    Args:
        found: the keys found, in order; one more than ``limit`` if there are more.
        limit: the most records of a page.
        looked: how many rows were looked at.
        last: the last key of those.
    """
    if len(found) > limit:
        return found[limit - 1]
    return last if looked == LOOKED_AT else None


def end_of(prefix: str) -> str | None:
    """Return the first text after all that start with the prefix; None if there is none."""
    rest = prefix.rstrip("\U0010ffff")
    if not rest:
        return None
    following = ord(rest[-1]) + 1
    return rest[:-1] + chr(following if following != 0xD800 else 0xE000)  # between them are no characters
