"""The part of a ledger that reads: its pages, one record, and how many there are."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from onceward.core import protocol, views
from onceward.core.attempts import Attempt, attempts_of
from onceward.core.clock import boottime
from onceward.core.comparisons import meets
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, Elsewhere, Record, Write
from onceward.core.selections import ByKey
from onceward.core.steps import fetch_result
from onceward.core.views import Criteria
from onceward.errors import OncewardError, UnknownNeed
from onceward.keys.ledger_keys import kept_key
from onceward.observe.logs import logger
from onceward.results.step_entries import entries_of
from onceward.stores.capabilities import SURVEY
from onceward.stores.contract import Damaged, DamagedRecord, NotFound, Page, Store
from onceward.stores.survey import NOTHING, READ, UNFINISHED, Survey

PAGE = 500
_RARE = {name.lower(): views.STATES[name] for name in ("UNSENT", "REFUSED")}  # left out if there are none

_KNOWN = UNFINISHED | {"LAPSED"}  # what an estimate needs


class LedgerReader:
    """The records of a store. Every method raises StoreError if the store cannot be reached."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def records(
        self,
        prefix: str = "",
        status: str | Iterable[str] | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
    ) -> Iterator[tuple[Record, float]]:
        """Yield each record whose key starts with ``prefix``, with the store's time.

        SQLite and memory sort them by key. DynamoDB has no order and is read completely: for large tables use :meth:`pages`.
        Records that cannot be read are left out, with a warning in the log.

        Args:
            prefix: the first characters of the keys.
            status: only those in this status, or in one of several: IN_PROGRESS, COMPLETED, RELEASED or PARKED; or LAPSED or
                EXPIRED, as in :meth:`stats`.
            older_than: only those that have not changed for so many seconds.
            newer_than: only those that changed within the last so many seconds.

        Raises:
            ValueError: a status is unknown, or an age is not between 0 and 100 years.
        """
        for page in self.pages(prefix, status, older_than=older_than, newer_than=newer_than):
            for one in page.damaged:
                logger().warning("%r: left out, because it cannot be read: %s", one.key, one.why)
            for record in page.records:
                yield record, page.now

    def pages(
        self,
        prefix: str = "",
        status: str | Iterable[str] | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Page]:
        """Yield pages of records in the store's own order, so that you can stop and go on later.

        A page can be empty although more pages follow. Without a status and an age, ``damaged`` has all records that
        cannot be read. If a record does not change, you get it once, even if you stop and go on later.

        Args:
            prefix: the first characters of the keys.
            status: as for :meth:`records`.
            older_than: as for :meth:`records`.
            newer_than: as for :meth:`records`.
            after: the ``next`` of the last page you read; None starts at the beginning.
            limit: the most records on all pages together; None means all.

        Raises:
            ValueError: as for :meth:`records`.
        """
        states = () if status is None else (status,) if isinstance(status, str) else tuple(status)
        criteria = Criteria(states, older_than, newer_than)
        criteria.check()
        size = PAGE if limit is None else min(limit, PAGE)
        while limit is None or limit > 0:
            page = drive(self.store.select(ByKey(prefix, criteria), after, size), self.store)
            records = [_plain(one) for one in page.records]
            if limit is not None and len(records) > limit:
                size = max(limit, size // 2)  # only a whole page has a next: read a smaller one again
                continue
            yield page._replace(records=records)
            if page.next is None:
                return
            after = page.next
            if limit is not None:
                limit -= len(records)
                # A page that is not full was filtered, so the next one may be larger.
                size = min(limit if len(records) == size else 2 * size, PAGE)

    def show(self, key: str, *, whole: bool = False) -> tuple[Record, float]:
        """Return the record of ``key`` and the store's time.

        Args:
            key: the key as it stands in the ledger.
            whole: whether to fetch a result that is kept elsewhere; otherwise ``result`` says where it is.

        Raises:
            NotFound: there is no such key.
            DamagedRecord: the record cannot be read.
        """
        # No ledger can hold a key with lone surrogates, as from an argument that is not UTF-8.
        readable = key.encode("utf-8", "replace").decode() == key
        reply = drive(self.store.load(key), self.store) if readable else None
        if reply is None or reply.record is None:
            raise NotFound(
                f"{key if readable else ascii(key)}: no such key in {self.store.url}; `onceward ls` shows those there are"
            )
        record = drive(fetch_result(reply.record, boottime), self.store) if whole else _plain(reply.record)
        return record, reply.now

    def attempts(self, key: str) -> list[Attempt]:
        """Return the last attempts of ``key``, the oldest first, including a running one. Raises NotFound."""
        return attempts_of(*self.show(key))

    def is_live(self, key: str) -> bool:
        """Return whether a worker holds ``key`` now. Raises NotFound if there is no record."""
        return protocol.is_live(*self.show(key))

    def stats(self, prefix: str = "") -> dict[str, int]:
        """Count the records by status, plus ``lapsed`` (their worker vanished) and ``expired`` (garbage).

        If there are any, ``unsent`` counts records whose messages wait for a sender, and ``refused`` those whose
        messages wait for a person. A status that this version does not know is counted under its name. A record that
        cannot be read counts only as ``damaged``.
        """
        counts: dict[str, int] = {}
        for so_far in self.counting(prefix):
            counts = so_far
        return counts

    def estimate(self) -> tuple[dict[str, int], frozenset[str]] | None:
        """Count the records without reading them, like :meth:`stats`, and return which of the counts are estimates.

        It returns None if the store cannot estimate, or if the ledger is so small that :meth:`stats` is as fast.
        """
        survey = self.survey()
        counts, total = dict(survey.counts), survey.total
        if total is None or not counts.keys() >= _KNOWN or (survey.exact and total <= READ):
            return None
        total = max(total, sum(counts[status] for status in UNFINISHED))
        counts.setdefault(COMPLETED, total - sum(counts[status] for status in UNFINISHED))
        rare = {name: counts[name.upper()] for name in _RARE if counts.get(name.upper())}
        expired = {"expired": counts["EXPIRED"]} if "EXPIRED" in counts else {}
        statuses = {status: counts[status] for status in sorted(protocol.STATUSES)}
        estimated = frozenset() if survey.exact else frozenset({"total", COMPLETED})
        return {"total": total, **statuses, "lapsed": counts["LAPSED"], **expired, **rare}, estimated

    def survey(self) -> Survey:
        """Return counts of all records, without reading them one by one. Some counts can be estimates."""
        survey = SURVEY.of(self.store)
        return NOTHING if survey is None else drive(survey(), self.store)

    def counting(
        self,
        prefix: str = "",
        *,
        on_damaged: Callable[[Damaged], object] | None = None,
    ) -> Iterator[dict[str, int]]:
        """Like :meth:`stats`, but yield the counts so far after each page. Call ``on_damaged`` with what cannot be read."""
        counts = dict.fromkeys(("total", *sorted(protocol.STATUSES), "lapsed", "expired"), 0)
        for page in self.pages(prefix):
            for record in page.records:
                counts["total"] += 1
                counts[record.status] = counts.get(record.status, 0) + 1
                counts["lapsed"] += views.is_lapsed(record, page.now)
                counts["expired"] += views.is_expired(record, page.now)
                for state, clause in _RARE.items() if record.due_at is not None else ():
                    if meets(record, clause, page.now):
                        counts[state] = counts.get(state, 0) + 1
            for one in page.damaged:
                counts["damaged"] = counts.get("damaged", 0) + 1
                if on_damaged is not None:
                    on_damaged(one)
            yield dict(counts)

    def _change(self, key: str, write: Callable[[Record, float], Write | None], refusal: str) -> Record:
        while True:
            record, now = self.show(key)
            if needs := protocol.unknown_needs(record):
                raise UnknownNeed(key, needs)
            change = write(record, now)
            if change is None:
                raise OncewardError(f"{key}: it is {record.status} and {refusal}")
            reply = drive(self.store.swap(change, record), self.store)
            if reply.won and reply.record is not None:
                return reply.record


def _plain(record: Record) -> Record:
    """Return the record with its result as text; for a result kept elsewhere, that is its place."""
    return record._replace(result=str(record.result)) if type(record.result) is Elsewhere else record


def delete_kept(store: Store, record: Record | None, steps: str | None = None) -> None:
    """Delete the large results of a record's steps, but for those that are still in ``steps``.

    What is left after a crash, or is changed meanwhile, expires.
    """
    if record is None:
        return
    try:
        current = entries_of(steps)
        entries = [one for one in entries_of(record.steps).values() if one.kept and one.name not in current]
    except ValueError:  # then nobody knows which there are
        return
    for entry in entries:
        with suppress(DamagedRecord):
            held = drive(store.load(kept_key(record.key, entry.name, entry.kept)), store).record
            if held is not None:
                drive(store.delete(held), store)
