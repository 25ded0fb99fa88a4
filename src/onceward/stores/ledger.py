"""The ledger for people: list, show, clear, park, unpark, settle, purge and count its records."""

import os
import time
from collections.abc import Iterator

from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, PARKED, Record, Write
from onceward.core.writes import retention_of
from onceward.errors import Busy, OncewardError
from onceward.keys.ledger_keys import may_be_kept
from onceward.results.classes import NotReplayable
from onceward.results.codec import Codec
from onceward.results.message_entries import unsent_of
from onceward.results.outcomes import storable
from onceward.results.step_entries import entries_of, without
from onceward.stores.contract import Damaged, DamagedRecord, HasUnsent, KeepsMessage, Purged
from onceward.stores.ledger_reader import PAGE, LedgerReader, delete_kept

_AHEAD = 10.0  # seconds that a store's own stamps can be ahead of its time


class Ledger(LedgerReader):
    """The records of a store, from ``once.ledger``. Every method raises StoreError if the store cannot be reached."""

    def clear(self, key: str, *, live: bool = False, message: bool = False, unsent: bool = False) -> Record | Damaged:
        """Delete the record of ``key``, so that its next delivery runs again, and return it.

        A record that cannot be read is deleted in any case: it does not show whether a worker holds it.

        Args:
            key: the key as it stands in the ledger.
            live: whether to clear it even if a worker holds it; that worker's result will be refused.
            message: whether to clear it even if it keeps a message, which is then lost.
            unsent: whether to clear it even if it has unsent messages, which are then lost.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it, and ``live`` is false.
            KeepsMessage: it keeps a message of a queue, and ``message`` is false.
            HasUnsent: it has unsent messages, and ``unsent`` is false.
        """
        while True:
            try:
                record, now = self.show(key)
            except DamagedRecord as error:
                if self._delete(error.damaged):
                    return error.damaged
                continue
            if not live:
                _check_free(record, now)
            if not message:
                _check_message(record, ". Clearing it loses the message")
            if not unsent:
                _check_sent(record)
            # A clock of whole seconds stamps ahead of its time, and a slow first request adds its timeout: wait, so that the
            # next claim gets a larger fence.
            if 0 < (ahead := record.fence / 1e6 - now) < _AHEAD:
                time.sleep(ahead)
            if self._delete(record):
                delete_kept(self.store, record)
                return record

    def _delete(self, seen: Record | Damaged) -> bool:
        try:
            return drive(self.store.delete(seen), self.store).won
        except DamagedRecord:  # it was damaged or changed since
            return False

    def park(self, key: str, reason: str = "parked by hand", *, live: bool = False) -> Record:
        """Stop retrying ``key``. Return the new record.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it, and ``live`` is false.
            OncewardError: it is completed, which is final.
        """

        def write(record: Record, now: float) -> Write | None:
            if not live:
                _check_free(record, now)
            return protocol.parked_by_hand(record, storable(reason))

        return self._change(key, write, "cannot be parked")

    def unpark(self, key: str) -> Record:
        """Let a parked ``key`` run again with all its attempts. Return the new record.

        Raises:
            NotFound: there is no such key.
            KeepsMessage: it keeps a message of a queue; see :func:`onceward.aws.dead_letters.letters.unpark_to`.
            OncewardError: it is not parked.
        """

        def write(record: Record, _: float) -> Write | None:
            import shlex

            again = f"`onceward unpark {shlex.quote(key)} --to QUEUE` sends it again, and unparks the key"
            _check_message(record, f", so no delivery would run: {again}")
            return protocol.unparked(record)

        return self._change(key, write, "is not parked")

    def settle(
        self,
        key: str,
        result: object,
        *,
        retention: float | None = None,
        message: bool = False,
        seen: Record | None = None,
    ) -> Record:
        """Complete ``key`` by hand: its effect is made, and duplicates get ``result``. Return the new record.

        Its steps stay. Messages that its handler would have sent are not sent. The result is not sealed. A handler with a
        return annotation reads the result as that type. If it does not fit, duplicates get ResultUnavailable.

        Args:
            key: the key as it stands in the ledger.
            result: what the handler would have returned.
            retention: seconds that it answers duplicates; ``float("inf")`` is for ever. None is the handler's own
                retention. A record that is parked or keeps its input does not contain that, so it then stays 14 days, the
                default of :class:`Policy`.
            message: whether to settle it even if it keeps a message, which is then lost.
            seen: the record as you looked at it. If it has changed since, nothing is done. None settles it as it is.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it.
            KeepsMessage: it keeps a message of a queue, and ``message`` is false.
            OncewardError: it is completed, or has changed, or the result cannot be recorded.
        """
        try:
            text = Codec().encode(result)
        except NotReplayable as error:
            raise OncewardError(f"{key}: the result cannot be recorded: {error}") from error
        owner = os.urandom(16).hex()

        def write(record: Record, now: float) -> Write | None:
            if seen is not None and record.version != seen.version:
                raise OncewardError(f"{key}: it has changed since you looked at it. Nothing was done: look at it again")
            _check_free(record, now)
            if not message:
                _check_message(record, ". Settling it loses the message")
            return protocol.settled(
                record, owner, text, kept_for(record) if retention is None else _check_retention(retention)
            )

        return self._change(key, write, "cannot be settled: that is for a key that is parked, given back or lapsed")

    def retry(self, key: str, step: str) -> Record:
        """Forget ``step`` of a key and all steps recorded after it, so that the next delivery makes them again.

        This also works for a completed key, and forgets its result. A downstream that knows ``claim.key(step)`` deduplicates.

        Args:
            key: the key in the ledger.
            step: the step's name, as ``onceward show`` prints it.

        Returns:
            The new record.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it.
            KeepsMessage: it keeps a message of a queue, which its next delivery would lose.
            HasUnsent: it has unsent messages.
            OncewardError: it has no such step.
        """
        before: Record | None = None

        def write(record: Record, now: float) -> Write | None:
            nonlocal before
            before = record
            _check_free(record, now)
            _check_message(record, ": unpark it with --to QUEUE first")
            _check_sent(record)
            try:
                steps = without(record.steps, step)
                names = ", ".join(map(repr, entries_of(record.steps))) or "none"
            except ValueError as error:
                raise OncewardError(f"{key}: its steps cannot be read: {error}") from error
            if steps is None:
                raise OncewardError(f"{key}: it has no step {step!r}. Recorded are: {names}")
            return protocol.retried(record, steps)

        after = self._change(key, write, "cannot be retried")
        delete_kept(self.store, before, after.steps)
        return after

    def purge(self, batch: int = PAGE, limit: int | None = None) -> int:
        """Delete expired records and return how many. Each write to the ledger also deletes a few.

        Args:
            batch: how many to delete at a time.
            limit: the most to delete; None means all.
        """
        return sum(purged.deleted for purged in self.purging(batch, limit=limit))

    def purging(self, batch: int = PAGE, *, limit: int | None = None) -> Iterator[Purged]:
        """Like :meth:`purge`, but yield for each batch how many it deleted."""
        after = None
        while limit is None or limit > 0:
            purged = drive(self.store.purge(batch if limit is None else min(batch, limit), after), self.store)
            yield purged
            if purged.next is None:
                return
            after = purged.next
            if limit is not None:
                limit -= purged.deleted

    def retire(self, prefix: str, older_than: float) -> Iterator[Record]:
        """Delete the completed records of a namespace that have not changed for so long, also if they have not expired. Yield each.

        A duplicate that comes later runs again. Records with unsent messages stay.

        Args:
            prefix: the first characters of the keys, such as ``shop.charge:``.
            older_than: seconds since the last change.

        Raises:
            ValueError: the prefix is empty, or the age is not between 0 and 100 years.
        """
        if not prefix:
            raise ValueError("prefix is empty: give the namespace whose records go, such as shop.charge:")
        for record, _ in self.records(prefix, COMPLETED, older_than):
            # A step's large result goes with the record of its handler.
            if record.unsent is None and not may_be_kept(record.key) and self._delete(record):
                delete_kept(self.store, record)
                yield record


def kept_for(record: Record) -> float | None:
    """Return for how many seconds a record stays when it is settled; None is for ever."""
    if record.status == PARKED or record.input is not None:  # it does not know its policy
        return Policy().retention
    return retention_of(record)


def _check_retention(retention: float) -> float | None:
    """Return a retention; raise ValueError or TypeError if it is none."""
    return None if retention == float("inf") else Policy(lease=1e-3, retention=retention).checked().retention


def _check_free(record: Record, now: float) -> None:
    if protocol.is_live(record, now):
        raise Busy(record.key, record.lease_until - now, record.worker)


def _check_message(record: Record, then: str) -> None:
    if protocol.message_in(record) is not None:
        raise KeepsMessage(f"{record.key}: it keeps a message that is in no queue any more{then}")


def _check_sent(record: Record) -> None:
    if record.unsent is None:
        return
    try:
        targets = [f"{one.to}{' (refused)' if one.refused else ''}" for one in unsent_of(record.unsent).messages]
    except ValueError:
        targets = ["(cannot be read)"]
    raise HasUnsent(
        f"{record.key}: {len(targets)} message(s) are not sent yet, to {', '.join(targets)}. `onceward relay --once` sends what is "
        "due; `onceward relay --retry KEY` or `--drop KEY` decides about refused ones. `onceward clear KEY --lose-messages` loses them"
    )
