"""What needs a person: keys that are parked, lapsed or wait for long, and messages that a target refused, by handler and reason."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from onceward.core.record import PARKED, RELEASED, Record
from onceward.core.views import Criteria, last_change
from onceward.dashboard.showing import outbox_of, reason, why
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


def listing(ledger: Ledger, query: RecordQuery, size: int = ROWS) -> Listing:
    """Read the records of one page."""
    end = time.monotonic() + PATIENCE
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
        if after is None or time.monotonic() > end:
            break
    return Listing(records, damaged, after, now, len(records) < size and after is not None)


_MOST: Final = 200  # records of each state
WAITING: Final = 900.0  # seconds after which a key that was given back counts as stuck
_ORDER: Final = (PARKED, "LAPSED", "REFUSED", RELEASED)


class Group(NamedTuple):
    """Records of one handler that are stuck for one reason."""

    handler: str
    state: str
    reason: str
    records: int
    oldest: float


class Needs(NamedTuple):
    """What needs a person, by handler and reason.

    Attributes:
        cut: the states of which there are more than were looked at.
        unknown: the states that only reading the ledger would find.
    """

    groups: list[Group]
    cut: list[str]
    unknown: list[str]
    now: float


def trouble(ledger: Ledger, survey: Survey) -> Needs:
    """Find what is parked, lapsed, or was given back a while ago, where an index has it."""
    changes: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    cut, unknown, now = [], [], survey.now
    for state, older in ((PARKED, None), ("LAPSED", None), ("REFUSED", None), (RELEASED, WAITING)):
        criteria = Criteria((state,), older)
        if not RecordQuery(criteria, "", None).is_quick(survey):
            unknown.append(state)
        elif survey.counts.get(state) != 0:
            seen = 0
            for record, now in first(ledger, criteria):
                seen += 1
                changes[_handler(record), state, _reason(record, state, now)].append(last_change(record, now))
            cut += [state] if seen == _MOST else []
    groups = [Group(*name, len(times), min(times)) for name, times in changes.items()]
    return Needs(sorted(groups, key=lambda group: (_ORDER.index(group.state), -group.records)), cut, unknown, now)


def _handler(record: Record) -> str:
    return record.key.partition(":")[0]


def _reason(record: Record, state: str, now: float) -> str:
    if state == "LAPSED":
        return ""  # it is the same for all
    if state != "REFUSED":
        return reason(why(record, now))
    messages = outbox_of(record)
    reasons = [one.refused for one in messages if one.refused] if isinstance(messages, list) else [messages]
    return reason(reasons[0]) if reasons else ""


def first(ledger: Ledger, criteria: Criteria) -> Iterator[tuple[Record, float]]:
    """Yield the first records of a state, each with the store's time, as long as one request may take."""
    end = time.monotonic() + PATIENCE
    for page in ledger.pages("", *criteria, limit=_MOST):
        for record in page.records:
            yield record, page.now
        if time.monotonic() > end:
            return
