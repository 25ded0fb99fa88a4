"""The decision table of ``core/protocol.py`` in SQL, and what a claim that replaces a record has in its columns.

Both are printed from the protocol's own tables. A test compares them with the protocol over random records.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from onceward.core import conditions, history
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


def taken(held: str, own: Mapping[str, str], epoch: str = "{}") -> dict[str, str]:
    """Return what the fields become that depend on the record that a claim replaces. There, ``verdict`` is a column.

    Args:
        held: the record's table; its columns are NULL if there is none.
        own: what the claim itself has in these fields.
        epoch: the seconds of a time; ``{}`` stands for its column.
    """
    return {row.field: _value(row, held, own[row.field], epoch) for row in FOLLOWING}


def _texts(texts: Iterable[str]) -> str:
    return ", ".join(f"'{text}'" for text in sorted(texts))


def _holds(rule: Rule) -> str:
    terms = [CONDITIONS[condition] for condition in rule.conditions]
    if rule.statuses is not None:
        word, statuses = ("IN", rule.statuses) if rule.statuses else ("NOT IN", STATUSES)
        terms.insert(0, f"{{held}}.status {word} ({_texts(statuses)})")
    return " AND ".join(terms)


def _value(row: Following, held: str, own: str, epoch: str) -> str:
    made = {
        Becomes.OWN: own,
        Becomes.KEPT: f"{held}.{row.field}",
        Becomes.NEXT: f"{held}.{row.field} + 1",
        Becomes.LAPSED: f"'{LAPSED[0]}' || {held}.attempts || '{LAPSED[1]}'",
        Becomes.ADDED: _added(held, epoch),
        Becomes.CLOSED: _closed(held, epoch),
    }
    fresh, lapsed, given_back = made[row.fresh], made[row.lapsed], made[row.given_back]
    if fresh == lapsed == given_back:
        return f"CASE WHEN {held}.key IS NULL THEN {own} ELSE {fresh} END"
    again = lapsed
    if lapsed != given_back:
        again = f"CASE {held}.status WHEN '{IN_PROGRESS}' THEN {lapsed} ELSE {given_back} END"
    first = "" if fresh == own else f"WHEN '{Verdict.START.name}' THEN {fresh} "
    return f"CASE {held}.verdict {first}WHEN '{Verdict.NEXT.name}' THEN {again} ELSE {own} END"


def _added(held: str, epoch: str) -> str:
    """Return the history with a line for a claim that lapsed: ``history.lapsed`` in SQL."""
    most = history.MOST - history.LINE
    rest = f"substr({held}.history, length({held}.history) - {most - 1})"
    last = f"substr({rest}, nullif(strpos({rest}, '\n'), 0))"
    lines = f"coalesce(CASE WHEN length({held}.history) > {most} THEN {last} ELSE {held}.history END, '')"
    begin = (
        f"CASE WHEN {held}.beat = 0 THEN {_milliseconds(f'{held}.updated_at', epoch)} "
        f"WHEN {held}.beat > 0 AND {held}.attempts = 1 THEN {_milliseconds(f'{held}.created_at', epoch)} END"
    )
    head = f"""'\n{{"begin":' || coalesce({begin}, 'null') || ',"fence":' || {held}.fence"""
    escaped = f"""replace(replace(substr({held}.worker, 1, {history.LONGEST_WORKER}), '\\', '\\\\'), '"', '\\"')"""
    worker = f"""coalesce('"' || {escaped} || '"', 'null')"""
    trace = f"""CASE WHEN length({held}.trace) = {history.TRACE} THEN ',"trace":"' || {held}.trace || '"' ELSE '' END"""
    return (
        f"{lines} || CASE WHEN {_is_open(held)} THEN '' ELSE {head} END || "
        f"""',"attempt":' || {held}.attempts || ',"worker":' || {worker} || ',"outcome":"{history.LAPSED}"' || {trace} || '}}'"""
    )


def _closed(held: str, epoch: str) -> str:
    """Return the history with the end of its last line: ``history.closed`` in SQL."""
    end = _milliseconds(f"{held}.lease_until", epoch)
    return f"""CASE WHEN {_is_open(held)} THEN {held}.history || ',"end":' || {end} || '}}' ELSE {held}.history END"""


def _is_open(held: str) -> str:
    return f"""{held}.history LIKE '%"fence":' || {held}.fence"""


def _milliseconds(column: str, epoch: str) -> str:
    return f"CAST(round({epoch.format(column)} * 1000) AS bigint) || 'e-3'"
