"""Counting the records of a ledger."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from onceward.core import protocol
from onceward.core.comparisons import meets
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED
from onceward.stores.capabilities import SURVEY
from onceward.stores.contract import Damaged, Page, Store
from onceward.stores.survey import NOTHING, READ, Survey

_RARE = {name.lower(): protocol.STATES[name] for name in ("UNSENT", "REFUSED")}  # left out if there are none

_KNOWN = (protocol.STATUSES - {COMPLETED}) | {"LAPSED"}  # what an estimate needs


class LedgerCounts(ABC):
    """The part of :class:`onceward.stores.ledger.Ledger` that counts."""

    store: Store

    @abstractmethod
    def pages(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> Iterator[Page]:
        """Yield pages of records."""

    def stats(self, prefix: str = "") -> dict[str, int]:
        """Count the records by status, plus ``lapsed`` (their worker vanished) and ``expired`` (garbage).

        ``unsent`` and ``refused`` (their messages wait for a sender, or for a person) are there if there are any. A status that this version does not know is counted under its name. Records that cannot be read, if any, count only
        as ``damaged``.
        """
        counts: dict[str, int] = {}
        for so_far, _ in self.counting(prefix):
            counts = so_far
        return counts

    def estimate(self) -> tuple[dict[str, int], frozenset[str]] | None:
        """Count the records without reading them, like :meth:`stats`, and return which of the counts are estimates.

        None: the store cannot, or the ledger is so small that :meth:`stats` is as fast.
        """
        survey = self.survey()
        counts, total = dict(survey.counts), survey.total
        if total is None or not counts.keys() >= _KNOWN or (survey.exact and total <= READ):
            return None
        total = max(total, sum(counts[status] for status in protocol.STATUSES - {COMPLETED}))
        counts.setdefault(COMPLETED, total - sum(counts[status] for status in protocol.STATUSES - {COMPLETED}))
        rare = {name: counts[name.upper()] for name in _RARE if counts.get(name.upper())}
        expired = {"expired": counts["EXPIRED"]} if "EXPIRED" in counts else {}
        statuses = {status: counts[status] for status in sorted(protocol.STATUSES)}
        estimated = {name if name in statuses else name.lower() for name in survey.least}
        estimated |= set() if survey.exact else {"total", COMPLETED}
        return {"total": total, **statuses, "lapsed": counts["LAPSED"], **expired, **rare}, frozenset(estimated)

    def survey(self) -> Survey:
        """Return what the store can tell of all its records in bounded time: exact counts, an estimate of the rest."""
        survey = SURVEY.of(self.store)
        return NOTHING if survey is None else drive(survey(), self.store)

    def counting(
        self,
        prefix: str = "",
        *,
        after: str | None = None,
        limit: int | None = None,
        on_damaged: Callable[[Damaged], object] | None = None,
    ) -> Iterator[tuple[dict[str, int], str | None]]:
        """Like :meth:`stats`, but after each page yield the counts so far and where to go on (None after the last).

        Args:
            prefix: the first characters of the keys.
            after: where an earlier count ended; add up both results.
            limit: the most records to count; None means all.
            on_damaged: called with each record that cannot be read.
        """
        counts = dict.fromkeys(("total", *sorted(protocol.STATUSES), "lapsed", "expired"), 0)
        for page in self.pages(prefix, after=after, limit=limit):
            for record in page.records:
                counts["total"] += 1
                counts[record.status] = counts.get(record.status, 0) + 1
                counts["lapsed"] += protocol.is_lapsed(record, page.now)
                counts["expired"] += protocol.is_expired(record, page.now)
                for state, clause in _RARE.items() if record.due_at is not None else ():
                    if meets(record, clause, page.now):
                        counts[state] = counts.get(state, 0) + 1
            for one in page.damaged:
                counts["damaged"] = counts.get("damaged", 0) + 1
                if on_damaged is not None:
                    on_damaged(one)
            yield dict(counts), page.next
