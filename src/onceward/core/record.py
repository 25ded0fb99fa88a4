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

    Make one by keyword. A field may be added at the end, with a default: what an older version wrote does not have it.

    ``(owner, fence, beat)`` is the record's version. A claim is known by its owner, a random id, and its fence, which
    tells it from an earlier claim of the same owner whose reply was lost, also when the record was purged in between; each
    write of a claim counts ``beat`` up. So no two different states of a key ever carry the same version.

    Attributes:
        updated_at: the time of the last write; None where an older version made it.
        worker: who made the last claim, as "host/1234", or a Lambda function and its request.
        needs: names of features, separated by spaces. Code that does not know one of them leaves the key alone.
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
    updated_at: float | None = None
    worker: str | None = None
    needs: str | None = None


class Write(NamedTuple):
    """A record on its way to a store, its times still durations: the store stamps them with its own clock. Make one by keyword.

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
    worker: str | None = None
    needs: str | None = None

    def at(self, now: float) -> Record:
        """Return the record that this write makes when the store's clock shows ``now`` (seconds)."""
        key, status, owner, fence, beat, tries, mark, result, error, made, lease, keep, floor, worker, needs = self
        until = now + lease
        if floor:  # a renewal
            until = max(until, floor)
        made = now if made is None else made
        ends = None if keep is None else until + keep
        fence = fence or int(now * 1e6)
        fields = (key, status, owner, fence, beat, until, tries, mark, result, error, made, ends, now, worker, needs)
        return tuple.__new__(Record, fields)  # what Record(...) does, in half the time


class Reply(NamedTuple):
    """A store's answer: whether the write was made, the record that now stands, and the store's time (seconds)."""

    won: bool
    record: Record | None
    now: float
