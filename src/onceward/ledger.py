"""The ledger for people: list, show, clear, park, unpark, purge and count its records."""

from collections.abc import Callable, Iterator

from onceward.core import protocol
from onceward.core.drive import drive
from onceward.core.record import Record, Write
from onceward.errors import Busy, OncewardError
from onceward.stores.contract import Store

PAGE = 500


class NotFound(OncewardError):
    """There is no record of that key."""


class Ledger:
    """The records of a store. You get one from ``once.ledger``.

    Every method raises StoreError when the store cannot be reached.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def records(self, prefix: str = "", status: str | None = None) -> Iterator[tuple[Record, float]]:
        """Yield each record whose key starts with ``prefix``, in the order of their keys, with the store's time.

        Args:
            prefix: the first characters of the keys.
            status: only those in this status: IN_PROGRESS, COMPLETED, RELEASED or PARKED.
        """
        after: str | None = None
        while True:
            page = drive(self.store.scan(prefix, after, PAGE), self.store)
            for record in page.records:
                if status is None or record.status == status:
                    yield record, page.now
            if page.next is None:
                return
            after = page.next

    def show(self, key: str) -> tuple[Record, float]:
        """Return the record of ``key`` (as it stands in the ledger) and the store's time; raises NotFound."""
        # A key with lone surrogates, as from an argument that is not UTF-8, can stand in no ledger.
        readable = key.encode("utf-8", "replace").decode() == key
        reply = drive(self.store.load(key), self.store) if readable else None
        if reply is None or reply.record is None:
            raise NotFound(
                f"{key if readable else ascii(key)}: no such key in {self.store.url}; `onceward ls` shows those there are"
            )
        return reply.record, reply.now

    def is_live(self, key: str) -> bool:
        """Tell whether a worker holds ``key`` now; raises NotFound."""
        return protocol.is_live(*self.show(key))

    def clear(self, key: str, *, live: bool = False) -> Record:
        """Forget ``key``, so that its next delivery runs again; return the record that was.

        Args:
            key: the key as it stands in the ledger.
            live: whether to clear it although a worker holds it; that worker's result will be refused.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it, and ``live`` is false.
        """
        while True:
            record, now = self.show(key)
            if protocol.is_live(record, now) and not live:
                raise Busy(key, record.lease_until - now)
            if drive(self.store.delete(record), self.store).won:
                return record

    def park(self, key: str, reason: str = "parked by hand", *, live: bool = False) -> Record:
        """Stop retrying ``key``; return the record as it is now.

        Raises:
            NotFound: there is no such key.
            Busy: a worker holds it, and ``live`` is false.
            OncewardError: it is completed, which is final.
        """

        def write(record: Record, now: float) -> Write | None:
            if protocol.is_live(record, now) and not live:
                raise Busy(key, record.lease_until - now)
            return protocol.parked_by_hand(record, reason)

        return self._change(key, write, "cannot be parked")

    def unpark(self, key: str) -> Record:
        """Let a parked ``key`` run again with all its attempts; return the record as it is now.

        Raises:
            NotFound: there is no such key.
            OncewardError: it is not parked.
        """
        return self._change(key, lambda record, _: protocol.unparked(record), "is not parked")

    def purge(self, batch: int = PAGE) -> int:
        """Delete all expired records, ``batch`` at a time, and return how many. Writes do the same, a few at a time."""
        total = 0
        while gone := drive(self.store.purge(batch), self.store):
            total += gone
        return total

    def stats(self, prefix: str = "") -> dict[str, int]:
        """Count the records by status, with ``lapsed`` for those whose worker vanished and ``expired`` for garbage."""
        counts = dict.fromkeys(("total", *sorted(protocol.STATUSES), "lapsed", "expired"), 0)
        for record, now in self.records(prefix):
            counts["total"] += 1
            counts[record.status] += 1
            counts["lapsed"] += protocol.is_lapsed(record, now)
            counts["expired"] += record.expires_at is not None and record.expires_at <= now
        return counts

    def _change(self, key: str, write: Callable[[Record, float], Write | None], refusal: str) -> Record:
        while True:
            record, now = self.show(key)
            change = write(record, now)
            if change is None:
                raise OncewardError(f"{key}: it is {record.status} and {refusal}")
            reply = drive(self.store.swap(change, record), self.store)
            if reply.won and reply.record is not None:
                return reply.record
