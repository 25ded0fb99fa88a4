"""The store contract: the protocol's register, plus what people need to look after a ledger.

A store is a dumb atomic register; it decides nothing. Each verb is a generator of the store's own requests, and
``exchange`` / ``exchange_async`` carry one request out and its reply back. ``onceward.testing.conformance`` checks a store
against all of this.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered, Register
from onceward.errors import StoreError


class Damaged(NamedTuple):
    """A record that cannot be read: its key, why, and what was seen, which only its store understands."""

    key: str
    why: str
    seen: object


class DamagedRecord(StoreError):
    """A store met a record that it cannot read. No handler runs.

    Attributes:
        damaged: what is known of it; ``store.delete(damaged)`` deletes it as it was seen.
    """

    def __init__(self, message: str, damaged: Damaged) -> None:
        super().__init__(message)
        self.damaged = damaged


class Page(NamedTuple):
    """Some records of a ledger, or none; ``next`` asks for those after them, None when these were the last.

    Those that cannot be read are in ``damaged``.
    """

    records: list[Record]
    next: str | None
    now: float
    damaged: Sequence[Damaged] = ()


MORE = "more"  # the ``next`` of a purge that always starts from the beginning


class Purged(NamedTuple):
    """How many expired records were deleted, and where there may be more; None when the store has been looked through.

    Those that expired but cannot be read are in ``damaged``, and stay.
    """

    gone: int
    next: str | None
    damaged: Sequence[Damaged] = ()


class Part(NamedTuple):
    """Something that a ledger is made of; ``made`` tells whether it was made just now, or was there already."""

    what: str
    made: bool


class Store(Register, Protocol):
    """A register that people can look into and clean up.

    A verb fails with :class:`onceward.StoreError`, whose ``transient`` says whether trying again may help. A write that
    is reported failed may still have been made; the protocol copes with that.

    Attributes:
        url: Where it is, for messages.
        max_result: Bytes of encoded result that a guard stores here unless its options say otherwise.
    """

    url: str
    max_result: int

    @property
    def capabilities(self) -> Mapping[str, str]:
        """What it can do beyond this contract, see ``capabilities.py``; empty when that is nothing."""

    def scan(self, prefix: str, after: str | None, limit: int) -> Steps[Page]:
        """Read up to ``limit`` records whose key starts with ``prefix``, from where ``after`` (a page's next) points.

        The order is the store's own, and the same each time. A page may be empty and have a next: the store looks at a
        bounded number of records, and none of them had the prefix.
        """

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        """Delete the record if it still has the owner, the fence and the beat of ``seen``; a damaged one, if nothing has changed."""

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete up to ``limit`` records past their ``expires_at``, from where ``after`` (an earlier one's next) points.

        It may delete none and have a next: the store looks at a bounded number of records.
        """

    def close(self) -> None:
        """Give back connections and threads; the store opens them again when it is used again."""


class OneByOne:
    """The ``*_many`` verbs for a store that has no batch request of its own."""

    def insert_many(self: Register, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert each in turn."""
        replies: list[Answered] = []
        for write in writes:
            reply = yield from _alone(self.insert(write))
            replies.append(reply)
        return replies

    def swap_many(self: Register, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap each in turn."""
        replies: list[Answered] = []
        for write, seen in pairs:
            reply = yield from _alone(self.swap(write, seen))
            replies.append(reply)
        return replies


def _alone(verb: Steps[Reply]) -> Steps[Answered]:
    """Return the reply or the error: an error of one key does not stop the others."""
    try:
        return (yield from verb)
    except StoreError as error:
        return error
