"""A record of a batch in its three stages: as read, in progress, and its outcome."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from onceward.batch.ends import HandledClaim
from onceward.core.steps import Replay
from onceward.core.writes import UNKNOWN, Provenance

if TYPE_CHECKING:
    from onceward.observe.spans import CallSpan, Comes

Status = Literal["done", "replayed", "failed", "busy", "parked", "mismatch", "malformed", "deferred"]


class Reading(NamedTuple):
    """What onceward reads from a record before anything runs.

    Attributes:
        args: the handler's positional arguments, without the claim, which the batch adds.
        key: str, int, UUID, bytes, or a tuple of them.
        fingerprint: of what must not change under one key; None checks nothing.
        comes: returns the source, id and headers of the record, for traces.
        provenance: where the record comes from, for the claim of its key.
    """

    args: tuple[object, ...]
    key: object
    fingerprint: str | None = None
    comes: "Comes | None" = None
    provenance: Provenance = UNKNOWN


class BatchOutcome(NamedTuple):
    """The outcome of one record of a batch.

    Attributes:
        status: "done" (the handler ran, and that is recorded), "replayed" (it ran before), "failed" (the handler raised, or
            its end was not recorded), "busy" (another worker has the key), "parked", "mismatch" (the key has another input),
            "malformed" (no key, or not readable), or "deferred" (not begun and not claimed: the time was up, its lease ended
            before its turn, or an earlier record of its group is not done).
        record: the record as given.
        key: the key in the ledger; None if malformed.
        value: what the handler returned, now or before.
        error: why it is not done, or the ``final`` exception that is its recorded outcome.
    """

    status: Status
    record: object
    key: str | None
    value: object = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether the effect is made and recorded. If so, you can acknowledge the record."""
        return self.status in {"done", "replayed"}


class Item(HandledClaim, eq=False, kw_only=True):
    """A record in progress."""

    index: int
    record: object
    args: tuple[object, ...] = ()
    key: str = ""
    fingerprint: str | None = None
    comes: "Comes | None" = None
    provenance: Provenance = UNKNOWN
    span: "CallSpan | None" = None  # until the claim has it
    group: int | None = None  # its number in this batch
    first: "Item | None" = None  # the first item with the same key; both share its outcome
    replay: Replay | None = None  # an earlier record that answers it
    begun: bool = False  # whether its handler was entered
    began: float | None = None  # when, on the owner's clock; None if it has ended
    outcome: BatchOutcome | None = None

    def differs(self, other: "Item") -> bool:
        """Return whether another record of this key has another input."""
        return None not in {self.fingerprint, other.fingerprint} and self.fingerprint != other.fingerprint
