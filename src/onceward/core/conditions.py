"""The conditions of the decision table, each with its name.

A condition can read all of a record but its status: the table in ``protocol.py`` does that.
"""

from collections.abc import Callable
from typing import NamedTuple

from onceward.core.policy import Policy
from onceward.core.record import Record


class Look(NamedTuple):
    """What decides about a record: the record, the store's time, and what the worker asks for."""

    held: Record
    now: float
    owner: str
    fingerprint: str | None
    policy: Policy


class Condition(NamedTuple):
    """One condition: what it says, and whether it holds."""

    says: str
    holds: Callable[[Look], bool]


def _is_expired(k: Look) -> bool:
    return k.held.expires_at is not None and k.held.expires_at <= k.now


def _differs(k: Look) -> bool:
    return k.fingerprint is not None and k.held.fingerprint is not None and k.fingerprint != k.held.fingerprint


def _used_up(k: Look) -> bool:
    return k.policy.max_attempts is not None and k.held.attempts >= k.policy.max_attempts


MINE = Condition("same owner as mine", lambda k: k.held.owner == k.owner)
EXPIRED = Condition("expired", _is_expired)
LEASE_OVER = Condition("no live lease", lambda k: k.held.lease_until <= k.now)
LEASE_LIVE = Condition("lease live", lambda k: k.now < k.held.lease_until)
DIFFERS = Condition("fingerprint differs", _differs)
PARKS_LAPSED = Condition('on_lapse="park"', lambda k: k.policy.on_lapse == "park")
USED_UP = Condition("attempts used up", _used_up)


def all_of(conditions: tuple[Condition, ...]) -> Callable[[Look], bool]:
    """Return one function that checks all of them."""
    holds = [condition.holds for condition in conditions]
    if not holds:
        return lambda _: True
    first, *rest = holds
    return first if not rest else lambda k: first(k) and all(one(k) for one in rest)
