"""The part of the store contract that the protocol stands on: an atomic register with three verbs and a clock."""

from collections.abc import Sequence
from typing import Protocol

from onceward.core.drivers import Steps, Transport
from onceward.core.record import Record, Reply, Write
from onceward.errors import StoreError

Answered = Reply | StoreError  # of one key among many: its reply, or its own trouble


class Register(Transport, Protocol):
    """A dumb atomic register of records. All policy is above it.

    Attributes:
        resolution: Seconds by which the times this store stamps and reports may be off (a clock of whole seconds: 1).
        poll: Seconds between two looks of someone who waits for a key.
    """

    resolution: float
    poll: float

    def insert(self, write: Write) -> Steps[Reply]:
        """Write if the key is absent. Won, or the record held."""

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        """Write if the record held still has the owner, the fence and the beat of ``seen``. Won, or the record held, or None."""

    def load(self, key: str) -> Steps[Reply]:
        """Read one record, as the latest finished write left it."""

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert each on its own merits; replies in the same order. What fails for one key stands in its place alone."""

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap each on its own merits; replies as of :meth:`insert_many`."""
