"""The conditions of the decision table.

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


Condition = Callable[[Look], bool]  # its name is what the docs say of it


def same_owner(k: Look) -> bool:
    """Return whether the record is mine."""
    return k.held.owner == k.owner


def expired(k: Look) -> bool:
    """Return whether garbage collection can delete it."""
    return k.held.expires_at is not None and k.held.expires_at <= k.now


def no_live_lease(k: Look) -> bool:
    """Return whether nobody holds it."""
    return k.held.lease_until <= k.now


def lease_live(k: Look) -> bool:
    """Return whether somebody holds it."""
    return k.now < k.held.lease_until


def fingerprint_differs(k: Look) -> bool:
    """Return whether it has another input."""
    return k.fingerprint is not None and k.held.fingerprint is not None and k.fingerprint != k.held.fingerprint


def on_lapse_parks(k: Look) -> bool:
    """Return whether the policy parks a key whose worker vanished."""
    return k.policy.on_lapse == "park"


def attempts_used_up(k: Look) -> bool:
    """Return whether no attempt is left."""
    return k.policy.max_attempts is not None and k.held.attempts >= k.policy.max_attempts
