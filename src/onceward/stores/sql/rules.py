"""The decision table of ``core/protocol.py`` in SQL, and what a claim that replaces a record has in its columns.

Both are printed from the protocol's own tables. A test compares them with the protocol over random records.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from onceward.core import conditions
from onceward.core.protocol import FREE, NEEDS, RULES, STATUSES, UNKNOWN_NEEDS, Rule, Verdict
from onceward.core.record import IN_PROGRESS
from onceward.core.writes import FOLLOWING, LAPSED, Becomes, Following

_OTHER_NEEDS = reduce(
    lambda rest, need: f"replace({rest}, ' {need} ', ' ')", sorted(NEEDS), "' ' || {held}.needs || ' '"
)
# A comparison with NULL does not hold, as in the protocol.
CONDITIONS: Final[dict[conditions.Condition, str]] = {
    UNKNOWN_NEEDS: f"trim({_OTHER_NEEDS}) <> ''",
    conditions.MINE: "{held}.owner = {owner}",
    conditions.EXPIRED: "{held}.expires_at <= {now}",
    conditions.LEASE_OVER: "{held}.lease_until <= {now}",
    conditions.LEASE_LIVE: "{held}.lease_until > {now}",
    conditions.DIFFERS: "{held}.fingerprint <> {fingerprint}",
    conditions.PARKS_LAPSED: "{on_lapse} = 'park'",
    conditions.USED_UP: "{held}.attempts >= {max_attempts}",
}


def verdict(held: str, now: str, asked: Mapping[str, str]) -> str:
    """Return the expression of the verdict about a record: its name.

    Args:
        held: the table, or its alias.
        now: the store's time.
        asked: the expressions of the claim's owner and fingerprint, and of its policy's on_lapse and max_attempts.
    """
    whens = " ".join(f"WHEN {_holds(rule)} THEN '{rule.verdict.name}'" for rule in RULES)
    return f"CASE {whens} END".format(held=held, now=now, **asked)


def is_free(verdict: str) -> str:
    """Return the condition that an insert can take the record with this verdict."""
    return f"{verdict} IN ({_texts(one.name for one in FREE)})"


def taken(held: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return what the fields become that depend on the record that a claim replaces. There, ``verdict`` is a column.

    Args:
        held: the record's table; its columns are NULL if there is none.
        own: what the claim itself has in these fields.
    """
    return {row.field: _value(row, held, own[row.field]) for row in FOLLOWING}


def _texts(texts: Iterable[str]) -> str:
    return ", ".join(f"'{text}'" for text in sorted(texts))


def _holds(rule: Rule) -> str:
    terms = [CONDITIONS[condition] for condition in rule.conditions]
    if rule.statuses is not None:
        word, statuses = ("IN", rule.statuses) if rule.statuses else ("NOT IN", STATUSES)
        terms.insert(0, f"{{held}}.status {word} ({_texts(statuses)})")
    return " AND ".join(terms)


def _value(row: Following, held: str, own: str) -> str:
    made = {
        Becomes.OWN: own,
        Becomes.KEPT: f"{held}.{row.field}",
        Becomes.NEXT: f"{held}.{row.field} + 1",
        Becomes.LAPSED: f"'{LAPSED[0]}' || {held}.attempts || '{LAPSED[1]}'",
    }
    fresh, lapsed, given_back = made[row.fresh], made[row.lapsed], made[row.given_back]
    if fresh == lapsed == given_back:
        return f"CASE WHEN {held}.key IS NULL THEN {own} ELSE {fresh} END"
    again = lapsed
    if lapsed != given_back:
        again = f"CASE {held}.status WHEN '{IN_PROGRESS}' THEN {lapsed} ELSE {given_back} END"
    first = "" if fresh == own else f"WHEN '{Verdict.START.name}' THEN {fresh} "
    return f"CASE {held}.verdict {first}WHEN '{Verdict.NEXT.name}' THEN {again} ELSE {own} END"
