"""The claim as a handler sees it. How it is held and ended is in ``lease.py`` and ``held.py``."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from onceward.core.record import Record
from onceward.keys.ledger_keys import derived_key

if TYPE_CHECKING:
    from onceward.claim.transaction import Transaction

T = TypeVar("T")
C = TypeVar("C")


class Claim:
    """The right to run the handler for one key.

    You get one from :func:`onceward.current`, from ``with once.claim(key)``, from ``once.acquire(key)``, or in a handler's
    parameter that is annotated with this class.

    Attributes:
        record: the record as this claim last wrote it; ``record.key`` is the key as it stands in the ledger.
    """

    __slots__ = ("__weakref__", "record")  # without ABC, whose isinstance() is slow

    record: Record

    @property
    def fence(self) -> int:
        """The fencing token: larger than that of every earlier claim on this key. Hand it to a downstream that checks."""
        return self.record.fence

    @property
    def attempt(self) -> int:
        """Which attempt on this key this is, from 1."""
        return self.record.attempts

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether the lease is over, as far as this worker can know: it stops believing before anyone may take over."""

    @property
    @abstractmethod
    def remaining(self) -> float:
        """Seconds of lease that are left, without another renewal; 0 when it is over."""

    def key(self, *parts: object) -> str:
        """Return a key derived from this claim's: a UUID that is the same on every attempt.

        Hand it to a downstream that takes idempotency keys.

        Args:
            *parts: what the downstream call is for, as in ``claim.key("refund")``; str, int, UUID, bytes or tuples.
        """
        return derived_key(self.record.key, parts)

    @abstractmethod
    def extend(self, seconds: float | None = None) -> None:
        """Renew the lease now.

        Args:
            seconds: how long it shall last from now, at least; None is the guard's lease. A renewal never shortens a lease.

        Raises:
            LeaseLost: the key has gone on without this worker.
            ForkedClaim: this process was forked from the one that made the claim.
            StoreError: the store could not be reached; the lease stands as it was.
        """

    @abstractmethod
    async def extend_async(self, seconds: float | None = None) -> None:
        """As :meth:`extend`, for a coroutine."""

    @abstractmethod
    def complete(self, result: object = None) -> None:
        """Record ``result`` for good. Duplicates get it from now on.

        Raises:
            LeaseLost: the key has gone on without this worker; nothing was recorded.
            ResultNotRecorded: the store stayed away until the lease was over, or for two leases while it was renewed.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before.
        """

    @abstractmethod
    async def complete_async(self, result: object = None) -> None:
        """As :meth:`complete`, for a coroutine."""

    @abstractmethod
    def release(self, error: str | None = None) -> None:
        """Give the key back for a retry; ``error`` is kept in the record for a person to read.

        Raises:
            LeaseLost: the key has gone on without this worker.
            StoreError: the store stayed away until the lease was over, or for two leases while it was renewed.
            ForkedClaim: this process was forked from the one that made the claim.
            OncewardError: the claim was ended before.
        """

    @abstractmethod
    async def release_async(self, error: str | None = None) -> None:
        """As :meth:`release`, for a coroutine."""

    @abstractmethod
    def park(self, reason: str | None = None) -> None:
        """Stop retrying the key until an operator clears or unparks it. Raises as :meth:`release` does."""

    @abstractmethod
    async def park_async(self, reason: str | None = None) -> None:
        """As :meth:`park`, for a coroutine."""

    @abstractmethod
    def transaction(self, connection: C) -> "Transaction[C]":
        """Return a context whose writes on ``connection`` commit together with this claim's completion.

        Do the slow work before it: while the context is open, it holds the write lock of an SQLite file.

        Args:
            connection: your own, to the ledger's database, in no transaction.

        Raises:
            TypeError: this ledger cannot do that; the message names those that can.
        """

    @abstractmethod
    def transact(self, writes: Sequence[object], result: T = None) -> T:  # type: ignore[assignment]  # T is NoneType then
        """Commit ``writes`` together with this claim's completion: all of them, or nothing. For ledgers in DynamoDB.

        Do it last: return what it returns. A worker that has lost its claim has its writes refused with its completion.

        Args:
            writes: up to 99, as in boto3's ``transact_write_items(TransactItems=writes)``: each a dict of one of Put,
                Update, Delete and ConditionCheck, on any tables of the ledger's region, with typed values ``{"S": "..."}``.
            result: what duplicates get.

        Returns:
            ``result``.

        Raises:
            EffectRefused: the condition of one of the writes does not hold; the claim stands, so the key can still be
                completed, released or parked, and a handler that lets the error go on gives it back.
            LeaseLost: the key has gone on without this worker.
            StoreError: the store refused the request, or stayed away until the lease was over; in the second case the next
                delivery finds out whether the writes were made.
            TypeError, ValueError: this ledger cannot do that, or a write has not this form.
        """

    @abstractmethod
    async def transact_async(self, writes: Sequence[object], result: T = None) -> T:  # type: ignore[assignment]  # as above
        """As :meth:`transact`, for a coroutine."""
