"""A record of a batch in its three stages: as read, in progress, and its outcome."""

from typing import Literal, NamedTuple

from onceward.claim.held import HeldClaim
from onceward.core.protocol import Outcome as End
from onceward.core.steps import Replay

Status = Literal["done", "replayed", "failed", "busy", "parked", "mismatch", "malformed", "deferred"]


class Reading(NamedTuple):
    """What is read from a record before anything runs.

    Attributes:
        args: the handler's positional arguments, without the claim, which the batch adds.
        key: str, int, UUID, bytes, or a tuple of them.
        fingerprint: of what must not change under one key; None checks nothing.
    """

    args: tuple[object, ...]
    key: object
    fingerprint: str | None = None


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


class Item:
    """A record in progress."""

    __slots__ = (
        "args",
        "begun",
        "claim",
        "end",
        "error",
        "fingerprint",
        "first",
        "group",
        "index",
        "key",
        "outcome",
        "record",
        "replay",
        "trouble",
        "value",
    )

    def __init__(self, index: int, record: object) -> None:
        self.index = index
        self.record = record
        self.args: tuple[object, ...] = ()
        self.key = ""
        self.fingerprint: str | None = None
        self.group: int | None = None  # its number in this batch
        self.first: Item | None = None  # the first item with the same key; both share its outcome
        self.claim: HeldClaim | None = None
        self.replay: Replay | None = None  # an earlier record that answers it
        self.begun = False  # whether its handler was entered
        self.value: object = None
        self.error: Exception | None = None  # what the handler raised
        self.end: End | None = None  # how the claim must end, set when the handler returns
        self.trouble: Exception | None = None  # why the end was not recorded
        self.outcome: BatchOutcome | None = None

    @property
    def held(self) -> HeldClaim:
        """The claim. The item must have one."""
        assert self.claim is not None
        return self.claim
