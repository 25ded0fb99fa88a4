"""Finds records without reading the ledger: by its order, where the store has one, and by its indexes."""

from typing import Final, NamedTuple

from onceward.core.record import PARKED, Record
from onceward.core.views import Criteria
from onceward.dashboard.needs import first
from onceward.dashboard.showing import kept_in, kept_place
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.audit import NAMESPACE
from onceward.stores.contract import NotFound
from onceward.stores.ledger import Ledger
from onceward.stores.survey import Survey

_NAMES: Final = 100  # handlers
_HITS: Final = 20  # records that a search shows


def names(ledger: Ledger, survey: Survey) -> tuple[list[str], bool]:
    """Return the namespaces of a sorted ledger, with one small request each, and whether there are more."""
    result: list[str] = []
    after = ""
    while survey.sorted and len(result) < _NAMES:
        page = next(ledger.pages(after=after, limit=1))
        if not page.records:
            return result, page.next is not None or bool(page.damaged)
        name, colon, _ = page.records[0].key.partition(":")
        if colon:
            result.append(name)
        # The first text after all keys of this name; one without a colon is a key by itself.
        after = f"{name}:\U0010ffff" if colon else name
    return result, survey.sorted


class Found(NamedTuple):
    """What a search has found without reading the ledger.

    Attributes:
        complete: whether it has looked everywhere.
        looked: where it has looked, in words.
    """

    records: list[Record]
    now: float
    complete: bool
    looked: list[str]


def search(ledger: Ledger, survey: Survey, text: str) -> Found:
    """Look for a key of the ledger or its beginning, a client's own key, or the id of a kept message."""
    hits: dict[str, Record] = {}
    looked, now, complete = ["a key"], survey.now, True
    try:
        record, now = ledger.show(text)
        hits[record.key] = record
    except NotFound:
        pass
    if not hits and survey.sorted:
        looked.append("the beginning of a key")
        page = next(ledger.pages(text, limit=_HITS))
        now = page.now
        hits |= {record.key: record for record in page.records}
    if not hits and survey.sorted:
        looked += ["a client's key, such as that of an HTTP header", "the id of a message"]
        handlers, more = names(ledger, survey)
        complete = not more
        for name in handlers:
            if name != NAMESPACE:
                hits |= {record.key: record for record in _of_client(ledger, name, text)}
    if not hits and PARKED in survey.indexed:
        for record, _ in first(ledger, Criteria((PARKED,))):
            stored = kept_in(record)
            if stored is not None and text in kept_place(stored):
                hits[record.key] = record
    return Found(list(hits.values())[:_HITS], now, complete and survey.sorted, looked)


def _of_client(ledger: Ledger, name: str, text: str) -> list[Record]:
    """Return the records of a client's key in a namespace: the key itself, or with what follows it over HTTP."""
    try:
        whole = ledger_key(name, text)
    except OncewardError:
        return []
    return [
        record
        for prefix in dict.fromkeys((f"{name}:{text}", whole))
        for record in next(ledger.pages(prefix, limit=_HITS)).records
    ]
