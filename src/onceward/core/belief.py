"""How long an owner believes in its claim: always shorter than the store grants it."""

from functools import lru_cache

from onceward.core.policy import Policy
from onceward.core.record import Record, Reply
from onceward.core.register import Register


def belief(store: Register, policy: Policy, sent: float, reply: Reply, record: Record, lease: float) -> float:
    """Return until when I hold the claim, on my clock: counted from before the request, and less than the store grants.

    It is at most the ``lease`` that was asked for, whatever time the store shows.
    """
    remaining = record.lease_until - reply.now
    return sent + min(remaining, lease) - margin(policy.lease, store.resolution)


@lru_cache  # a claim asks twice, and there are few policies
def margin(lease: float, resolution: float) -> float:
    """Return by how many seconds an owner's belief ends before its lease does, on a store of this ``resolution``."""
    # A hundredth for clocks that run at different speeds, and the store's own imprecision.
    return lease / 100 + resolution


def lease_to(store: Register, lease: float, remaining: float) -> float:
    """Return the lease that a worker needs that stops in ``remaining`` seconds, at most ``lease`` (seconds)."""
    return min(lease, max(3 * store.resolution, 1.0, remaining + remaining / 50 + store.resolution))


def within(store: Register, policy: Policy, remaining: float) -> Policy:
    """Return the policy of a worker that stops in ``remaining`` seconds, with a lease no longer than it needs."""
    lease = lease_to(store, policy.lease, remaining)
    beat = policy.heartbeat
    if beat and beat >= lease - margin(lease, store.resolution):
        beat = None
    return policy._replace(lease=lease, heartbeat=beat)
