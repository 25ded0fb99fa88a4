"""The record of one key, a write to a store, and the store's reply."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from onceward.core.drivers import Steps

IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
RELEASED: Final = "RELEASED"
PARKED: Final = "PARKED"


class Elsewhere(str):
    """The address of a large result that is kept outside its record.

    Attributes:
        fetch: returns the steps that get the result; they raise ResultUnavailable or StoreError.
    """

    __slots__ = ("fetch",)
    fetch: "Callable[[], Steps[str]]"


class Record(NamedTuple):
    """One key's row in the ledger. Times are seconds since the epoch on the store's own clock.

    Make one by keyword. Add a new field at the end, with a default: older versions did not write it.

    ``(owner, fence, beat)`` is the record's version; no two states of a key share one. The owner is a random id. The fence
    separates this claim from an earlier one of the same owner whose reply was lost, even if the record was purged between.
    Each write of a claim adds 1 to ``beat``. A transaction of the caller adds a large random number instead. If it is
    rolled back, no later write gets the same version.

    Attributes:
        updated_at: the time of the last write; None if an older version made it.
        worker: who made the last claim, as "host/1234", or a Lambda function and its request.
        needs: names of features, separated by spaces. Code that does not know all of them leaves the key alone.
        steps: what is recorded of each step of the handler, as JSON; None if it has none.
        unsent: the messages that were committed with the completion and are not sent yet, as JSON.
        due_at: the time from which anybody can send them; until then, somebody may be sending.
        origin: the sender of the message that caused this call, as JSON.
        input: the handler's arguments, as JSON, if they are kept.
        history: the last attempts, as JSON lines.
        trace: the W3C traceparent of the last run.
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
    steps: str | None = None
    unsent: str | None = None
    due_at: float | None = None
    origin: str | None = None
    input: str | None = None
    history: str | None = None
    trace: str | None = None

    @property
    def version(self) -> tuple[str, int, int]:
        """Owner, fence and beat, which a conditional write compares."""
        return self[2:5]


RARE: Final = Record._fields[Record._fields.index("needs") :]  # fields that most records do not have


class Write(NamedTuple):
    """A record on its way to a store. Its times are durations until the store stamps them. Make one by keyword.

    A ``fence`` of 0 asks the store for a new one: its time in microseconds, larger than any fence of an expired and purged
    record of the same key. A takeover gives one more than the fence that it saw, and the store may make it larger. The record
    stays ``keep`` seconds after the lease; ``None`` is for ever. The lease ends at ``until`` (store's time) or later: a
    renewal never shortens it. Its messages are due ``due`` seconds from now; None is never.
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
    steps: str | None = None
    unsent: str | None = None
    due: float | None = None
    origin: str | None = None
    input: str | None = None
    history: str | None = None
    trace: str | None = None

    def at(self, now: float) -> Record:
        """Return the record that this write makes at the store's time ``now`` (seconds)."""
        (key, status, owner, fence, beat, tries, mark, result, error, created_at, lease, keep, floor, by, needs, did,
            unsent, due, origin, input_, history, trace) = self[:]  # fmt: skip # an exact tuple unpacks in half the time
        until = now + lease
        if floor:  # a renewal
            until = max(until, floor)
        created_at = now if created_at is None else created_at
        ends = None if keep is None else until + keep
        fence = fence or int(now * 1e6)
        at = None if due is None else now + due
        fields = (key, status, owner, fence, beat, until, tries, mark, result, error, created_at, ends, now, by, needs,
            did, unsent, at, origin, input_, history, trace)  # fmt: skip
        return tuple.__new__(Record, fields)  # what Record(...) does, in half the time


class RepeatedWrite(Write):
    """A claim whose request may be repeated by its client, which may have the fence already: a repetition must not change it."""

    __slots__ = ()


class Reply(NamedTuple):
    """A store's answer: whether the write was made, the current record, and the store's time (seconds)."""

    won: bool
    record: Record | None
    now: float
