"""The part of the store contract that the protocol needs: an atomic register with three verbs and a clock."""

from collections.abc import Sequence
from typing import Protocol

from onceward.core.drivers import Steps, Transport
from onceward.core.record import Record, Reply, Write
from onceward.errors import StoreError


class KeyLocked(StoreError):
    """An open transaction of somebody holds the key, and the store waited for it in vain: a claim finds it busy.

    Attributes:
        brief: whether the wait was so short that the same request is to be tried again.
    """

    brief = False

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


Answered = Reply | StoreError  # for one key among many: its reply or its error


class Register(Transport, Protocol):
    """An atomic register of records, without any policy.

    Attributes:
        resolution: Seconds by which this store's times can be off (1 for a clock of whole seconds).
        poll: Seconds between two looks of a caller that waits for a key.
    """

    resolution: float
    poll: float

    def insert(self, write: Write) -> Steps[Reply]:
        """Write if the key is absent. The reply is won, or has the current record."""

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        """Write if the record still has the owner, fence and beat of ``seen``. Won, or has the current record or None."""

    def load(self, key: str) -> Steps[Reply]:
        """Read one record, as the latest finished write left it."""

    def changed(self, key: str, seconds: float, most: float, /) -> Steps[None]:
        """Wait until the record of a busy key may have changed: somebody who waits for it looks then.

        A store that cannot tell sleeps for ``seconds``: ``yield Sleep(seconds)``. A store that is told of changes can wait
        longer, up to ``most``, once it listens: it returns at once when it begins to listen, so that no change is missed.
        A store that cannot listen now sleeps, and raises nothing.
        """

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert each independently; replies are in the same order. A key that fails has its error in its place."""

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap each independently; replies as for :meth:`insert_many`."""
