"""The store contract: the protocol's register, plus what people need to maintain a ledger.

A store is a plain atomic register and decides nothing. Each verb is a generator of the store's own requests;
``exchange`` / ``exchange_async`` send one and return its reply. ``onceward.testing.conformance`` checks all of this.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onceward.core.drivers import Sleep, Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered, Register
from onceward.errors import OncewardError, StoreError

if TYPE_CHECKING:
    from onceward.core.selections import Selection


class Damaged(NamedTuple):
    """A record that cannot be read: its key, the reason, and its content, which only its store understands."""

    key: str
    why: str
    seen: object


class NotFound(OncewardError):
    """There is no record of that key.

    Cause: The key has another namespace, has expired, or was cleared.

    Fix: Look for the key with ``onceward ls --prefix``. Or give ``onceward show`` the key as the client sent it.
    """


class KeepsMessage(OncewardError):
    """The record keeps a message that is in no queue any more. Clearing the record would lose it.

    Cause: The queue has no dead-letter queue, so the worker has kept the message in its key's record.

    Fix: Send the message again with ``onceward unpark KEY --to QUEUE``. If you do not need the message, run ``onceward
    clear KEY``, and confirm.
    """


class HasUnsent(OncewardError):
    """The record has messages that its handler sent and no target got yet. Without the record they would be lost.

    Cause: The handler completed, and the relay has not sent its messages yet.

    Fix: Run ``onceward relay``. If you do not need the messages, pass ``--lose-messages``.
    """


class DamagedRecord(StoreError):
    """A store cannot read a record. No handler runs.

    Cause: Another program changed the record, or the disk did.

    Fix: Find out whether its effect happened. Then ``onceward clear KEY`` deletes the record.

    Attributes:
        damaged: what is known of the record; ``store.delete(damaged)`` deletes the record if it has not changed.
    """

    def __init__(self, message: str, damaged: Damaged) -> None:
        super().__init__(message)
        self.damaged = damaged


class NoIndex(StoreError):
    """No index of the ledger finds these records.

    Cause: This kind of ledger has no such index, or this ledger does not have the index yet.

    Fix: Do what the message says.
    """


class Page(NamedTuple):
    """Some records of a ledger, or none. Others may have changed them meanwhile.

    Attributes:
        records: the records.
        next: pass it to go on; None means the end.
        now: the store's time.
        damaged: those that cannot be read.
        wait: of what is due: seconds until the messages of other records are; None if the store knows of none.
    """

    records: list[Record]
    next: str | None
    now: float
    damaged: Sequence[Damaged] = ()
    wait: float | None = None


MORE = "more"  # the ``next`` of a purge that always starts from the beginning


class Purged(NamedTuple):
    """How many expired records were deleted. Pass ``next`` to go on; None means the end.

    Expired records that cannot be read stay and are in ``damaged``.
    """

    deleted: int
    next: str | None
    damaged: Sequence[Damaged] = ()


class Part(NamedTuple):
    """A part of a ledger. ``made`` says whether it was made just now or existed already."""

    what: str
    made: bool


class Store(Register, Protocol):
    """A register that people can inspect and clean up.

    A verb fails with :class:`onceward.StoreError`; its ``transient`` says whether a retry may help. A write reported as
    failed may still have happened; the protocol handles that.

    Attributes:
        url: where it is, for messages.
        max_result: bytes of encoded result that a guard stores here, unless its options say otherwise.
    """

    url: str
    max_result: int

    @property
    def capabilities(self) -> Mapping[str, str]:
        """What it can do beyond this contract: see ``capabilities.py``. May be empty."""

    def select(self, selection: "Selection", after: str | None, limit: int) -> Steps[Page]:
        """Read up to ``limit`` of the records that are selected, by the store's own clock, from ``after`` (an earlier page's next).

        The order is that of the selection, and always the same. A page may be empty and have a next, because the store
        looks at a limited number of records. Raises :class:`NoIndex`.
        """

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        """Delete the record if its owner, fence and beat are those of ``seen``. A damaged one must be entirely unchanged."""

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete up to ``limit`` records past their ``expires_at``, from ``after`` (an earlier purge's next).

        It may delete none and have a next, because the store looks at a limited number of records.
        """

    def close(self) -> None:
        """Close connections and threads. The next use opens them again."""


def token_of(due_at: float, key: str) -> str:
    """Return the ``next`` of a page of what is due that ends with this record."""
    return f"{due_at!r} {key}"


def point_of(after: str | None) -> tuple[float, str]:
    """Return the ``due_at`` and the key after which such a page begins."""
    if after is None:
        return 0.0, ""
    due_at, _, key = after.partition(" ")
    return float(due_at), key


class Polled:
    """``changed`` for a store that cannot tell of changes: waiters look again and again."""

    def changed(self, _: str, seconds: float, __: float, /) -> Steps[None]:
        yield Sleep(seconds)


class OneByOne(Polled):
    """The ``*_many`` verbs for a store without a batch request, which is polled, too."""

    def insert_many(self: Register, writes: Sequence[Write]) -> Steps[list[Answered]]:
        return _each(self.insert(write) for write in writes)

    def swap_many(self: Register, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        return _each(self.swap(write, seen) for write, seen in pairs)


def _each(verbs: Iterable[Steps[Reply]]) -> Steps[list[Answered]]:
    replies: list[Answered] = []
    for verb in verbs:
        answer = yield from answer_of(verb)
        replies.append(answer)
    return replies


def answer_of(verb: Steps[Reply]) -> Steps[Answered]:
    """Return the reply or the error, so that one key's error does not stop the others."""
    try:
        return (yield from verb)
    except StoreError as error:
        return error
