"""What goes into a batch and what comes out of it: a record as it was read, on its way, and what became of it."""

from typing import Literal, NamedTuple

from onceward.claim.held import HeldClaim
from onceward.core.protocol import Outcome as End
from onceward.core.steps import Replay

Status = Literal["done", "replayed", "failed", "busy", "parked", "mismatch", "malformed", "deferred"]


class Reading(NamedTuple):
    """What is read from a record before anything runs.

    Attributes:
        args: the handler's positional arguments; a parameter for the claim is filled in.
        key: str, int, UUID, bytes, or a tuple of them.
        fingerprint: of what must not change under one key, or None to ask for none.
    """

    args: tuple[object, ...]
    key: object
    fingerprint: str | None = None


class BatchOutcome(NamedTuple):
    """What became of one record of a batch.

    Attributes:
        status: "done" (its handler ran and is recorded), "replayed" (it had run before), "failed" (the handler raised, or its
            end could not be recorded), "busy" (another worker has it), "parked", "mismatch" (another input under the same
            key), "malformed" (it has no key, or could not be read), or "deferred" (not begun, and not claimed: the time
            was up, its lease was over before its turn came, or what comes before it in its group is not done).
        record: the record as it was given.
        key: the key in the ledger; None when it is malformed.
        value: what the handler returned, now or before.
        error: why it is not done; or the ``final`` exception that is its recorded outcome.
    """

    status: Status
    record: object
    key: str | None
    value: object = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether its effect is made and recorded, so that it may be acknowledged."""
        return self.status in {"done", "replayed"}


class Item:
    """A record on its way through a batch."""

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
        self.first: Item | None = None  # the one of the same key before it, whose fate it shares
        self.claim: HeldClaim | None = None
        self.replay: Replay | None = None  # the record that answers it
        self.begun = False  # whether its handler was entered
        self.value: object = None
        self.error: Exception | None = None  # what the handler raised
        self.end: End | None = None  # how the claim is to end, once the handler is through
        self.trouble: Exception | None = None  # why that could not be recorded
        self.outcome: BatchOutcome | None = None

    @property
    def held(self) -> HeldClaim:
        """The claim, of an item that has one."""
        assert self.claim is not None
        return self.claim
