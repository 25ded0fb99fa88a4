"""The record of one key, and what goes to and comes back from a store."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from onceward.core.drivers import Steps

IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
RELEASED: Final = "RELEASED"
PARKED: Final = "PARKED"


class Elsewhere(str):
    """A result that is kept outside of its record, because it is large; the text says where.

    Attributes:
        fetch: gives the steps that get the result; they raise ResultUnavailable, or StoreError.
    """

    __slots__ = ("fetch",)
    fetch: "Callable[[], Steps[str]]"


class Record(NamedTuple):
    """One key's row in the ledger. Times are seconds since the epoch on the store's own clock.

    ``(owner, fence, beat)`` is the record's version. A claim is known by its owner, a random id, and its fence, which
    tells it from an earlier claim of the same owner whose reply was lost, also when the record was purged in between; each
    write of a claim counts ``beat`` up. So no two different states of a key ever carry the same version.
    """

    key: str
    status: str
    owner: str
    fence: int
    beat: int
    lease_until: float
    attempts: int
    fingerprint: str | None
    result: str | None
    error: str | None
    created_at: float
    expires_at: float | None


class Write(NamedTuple):
    """A record on its way to a store, its times still durations: the store stamps them with its own clock.

    A ``fence`` of 0 asks the store for a new one: its time in microseconds, which is larger than any fence that an
    expired and purged record of the same key can have had. ``keep`` is how many seconds after the lease the record
    stays; ``None`` is for ever. The lease ends at ``until`` (store's time) or later: a renewal never lowers what stands.
    """

    key: str
    status: str
    owner: str
    fence: int
    beat: int
    attempts: int
    fingerprint: str | None
    result: str | None
    error: str | None
    created_at: float | None
    lease: float
    keep: float | None
    until: float = 0.0

    def at(self, now: float) -> Record:
        """Return the record that this write makes when the store's clock shows ``now`` (seconds)."""
        key, status, owner, fence, beat, attempts, fingerprint, result, error, created_at, lease, keep, floor = self
        until = now + lease
        if floor:  # a renewal
            until = max(until, floor)
        created_at = now if created_at is None else created_at
        expires_at = None if keep is None else until + keep
        fence = fence or int(now * 1e6)
        fields = (key, status, owner, fence, beat, until, attempts, fingerprint, result, error, created_at, expires_at)
        return tuple.__new__(Record, fields)  # what Record(...) does, in half the time


class Reply(NamedTuple):
    """A store's answer: whether the write was made, the record that now stands, and the store's time (seconds)."""

    won: bool
    record: Record | None
    now: float
