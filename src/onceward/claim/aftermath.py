"""What follows when a transaction did not commit, or nobody knows whether it did.

All of it happens on the store's own connection, by conditional writes. A write waits for the row that a lost transaction may
still hold, so it learns how that one ends. A read does not wait: what it does not find can still be committed.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from onceward.claim.ends import EndingClaim
from onceward.core import protocol, retries, steps
from onceward.core.drivers import Steps, mapped
from onceward.core.record import Record, Reply
from onceward.core.steps import Lost, Won
from onceward.errors import OncewardError, StoreError
from onceward.results.outcomes import describe
from onceward.stores.capabilities import Apart

T = TypeVar("T")
ENDED = "the body committed or rolled back the transaction itself, so its effect may or may not stand"


def apart(verb: Steps[T]) -> Steps[T]:
    """Run steps on the store's own connection, in the middle of a transaction's."""
    return mapped(verb, Apart)


class Aftermath(Protocol):
    """What follows when a transaction did not commit with its record.

    Attributes:
        ended: the claims that have recorded that.
    """

    ended: list[EndingClaim]

    def failed(self, error: BaseException) -> Steps[None]:
        """Record that the body raised ``error``. The transaction was rolled back."""

    def ended_early(self) -> Steps[None]:
        """Park the key: the body has ended the transaction. It is rolled back, if another was open."""

    def was_committed(self, error: BaseException) -> Steps[bool]:
        """Find out whether a COMMIT that raised ``error`` was made. If not, record the failure.

        Raises:
            StoreError: the store could not tell.
            OncewardError: the body has committed what began the transaction, and then lost the connection. The key is parked.
        """

    def untold(self) -> None:
        """Go on from before: after two troubles in a row, none of the above has come to its end."""


class OfClaim:
    """For a claim that was made before the transaction. It is as it was, and its own guard ends it.

    Args:
        claim: the claim.
        before: its record before the transaction.
    """

    def __init__(self, claim: EndingClaim, before: Record) -> None:
        self._claim = claim
        self._before = before
        self._messages = 0 if claim.outbox is None else claim.outbox.count
        self.ended: list[EndingClaim] = []

    def failed(self, error: BaseException) -> Steps[None]:
        """Go on with the claim as it was, unless the body has committed what began the transaction."""
        if (yield from self._has_left()):
            yield from self.ended_early()
            raise ended_by_body(self._before.key) from error
        self._claim.reopened(self._before, self._messages)

    def _has_left(self) -> Steps[bool]:
        """Return whether the record shows the renewal that began the transaction, which was rolled back."""
        renewal = self._claim.record
        try:
            reply: Reply = yield from apart(self._claim.store.load(renewal.key))
        except StoreError:  # the caller must see the body's error
            return False
        held = reply.record
        return held is not None and held.version[:2] == renewal.version[:2] and held.beat >= renewal.beat

    def ended_early(self) -> Steps[None]:
        """Park the key."""
        self._claim.reopened(self._before, self._messages)
        yield from apart(self._claim.leaving(protocol.parked(ENDED), "park it"))

    def was_committed(self, error: BaseException) -> Steps[bool]:
        """Renew the claim as it was: that waits for the transaction, and fails if it was committed."""
        claim = self._claim
        renewals = [(self._before, claim.policy.lease)]

        def beat() -> Steps[list[Won | Lost]]:
            return apart(steps.heartbeat(claim.store, renewals, [claim.policy], claim.clock))

        try:
            (outcome,) = yield from ask_again(beat, claim, error)
        except (
            BaseException
        ) as trouble:  # also an interrupt: what was not committed must not be written with the next end
            claim.reopened(self._before, self._messages)
            self._unknown(
                trouble if isinstance(trouble, OncewardError) else StoreError(describe(trouble), transient=True)
            )
            raise
        if self._stands(outcome) and outcome.record is not None:
            claim.record = outcome.record  # with its times, which came with the lost reply
            return True
        if outcome.record is not None and isinstance(outcome, Won) and outcome.record.beat >= claim.record.beat:
            yield from self.ended_early()
            raise ended_by_body(self._before.key) from error
        claim.reopened(self._before, self._messages)
        claim.renewed(outcome)
        return False

    def _stands(self, outcome: Won | Lost) -> bool:
        """Return whether the answer to a renewal shows that the transaction was committed."""
        held, mine = outcome.record, self._claim.record
        if isinstance(outcome, Won) or held is None or held.version[:2] != mine.version[:2]:
            return False  # what was renewed is in progress
        return held.beat >= mine.beat  # a relay may have its messages by now

    def untold(self) -> None:
        """Forget what was written."""
        self._claim.record = self._before

    def _unknown(self, trouble: OncewardError) -> None:
        """Note that nobody can tell what the COMMIT did."""


def ended_by_body(key: str) -> OncewardError:
    """Return the error for a body that ended the transaction."""
    return OncewardError(
        f"{key}: {ENDED}, without the record. The key is parked: look at the effect, then `onceward clear` or "
        "`onceward unpark` it. Leave commit and rollback to the with statement (executescript() commits, too)"
    )


def ask_again(verb: Callable[[], Steps[T]], claim: EndingClaim, error: BaseException) -> Steps[T]:
    """Ask until the store answers, for one lease; after an interrupt, for CLAIM_PATIENCE."""
    clock = claim.clock
    limit = claim.limit(1) if isinstance(error, Exception) else clock() + retries.CLAIM_PATIENCE
    try:
        return (yield from retries.retry_transient(verb, clock, lambda: limit))
    except OncewardError as trouble:
        raise StoreError(
            f"{claim.record.key}: the reply to its COMMIT was lost, and the ledger cannot tell what it did ({trouble}). Effect and "
            "record are both written, or neither is. Deliver it again",
            transient=True,
        ) from error
