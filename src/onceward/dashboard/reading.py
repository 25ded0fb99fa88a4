"""What pages ask of a ledger. Nothing here reads a whole ledger unless its visitor has asked for that, and then a part at a time."""

import time
from typing import Final, NamedTuple

from onceward.core.record import Record
from onceward.core.views import Criteria
from onceward.stores.contract import Damaged
from onceward.stores.ledger import Ledger
from onceward.stores.survey import Survey

ROWS: Final = 50  # of a list
PATIENCE: Final = 1.5  # seconds of one request that looks through a ledger


class RecordQuery(NamedTuple):
    """Which records somebody wants to see, and from where on."""

    criteria: Criteria
    prefix: str
    after: str | None

    def is_quick(self, survey: Survey) -> bool:
        """Return whether the store finds them without reading others."""
        if self.criteria == Criteria():
            return survey.sorted or not self.prefix
        if self.criteria.are_about_messages and "UNSENT" in survey.counts:  # what was counted has an index
            return True
        return self.criteria.are_within(survey.indexed) or (survey.exact and survey.sorted)


class Listing(NamedTuple):
    """Some records, where to go on, and whether the time was over before the list was full."""

    records: list[Record]
    damaged: list[Damaged]
    next: str | None
    now: float
    cut: bool


def ends() -> float:
    """Return when a request must stop to look through a ledger."""
    return time.monotonic() + PATIENCE


def is_over(end: float) -> bool:
    """Return whether that time has come."""
    return time.monotonic() > end


def listing(ledger: Ledger, query: RecordQuery, size: int = ROWS) -> Listing:
    """Read the records of one page."""
    end = ends()
    records: list[Record] = []
    damaged: list[Damaged] = []
    after, now = query.after, 0.0
    # Each page with the room that is left: only a whole page has a next.
    while len(records) < size:
        pages = ledger.pages(query.prefix, *query.criteria, after=after, limit=size - len(records))
        page = next(pages)
        records += page.records
        damaged += page.damaged
        after, now = page.next, page.now
        if after is None or is_over(end):
            break
    return Listing(records, damaged, after, now, len(records) < size and after is not None)
