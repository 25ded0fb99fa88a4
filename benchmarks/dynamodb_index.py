"""Capacity units of a write with and without the index of what is not completed, and of what is asked of that index.

Units are those of the server's own answers, the index's included.
"""

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, PARKED
from onceward.core.writes import ended, first_claim
from onceward.dashboard.needs import trouble
from onceward.observe.events import StoreRequest
from onceward.stores.capabilities import OBSERVE
from servers.dynoxide import Dynoxide

COMPLETED_RECORDS, PARKED_RECORDS, BATCH = 10_000, 100, 500


class Meter:
    """A ledger, and what its requests consume."""

    def __init__(self, url: str) -> None:
        self.once = Once(url, name="shop")
        self.once.acquire("warm-up").complete(1)
        self._told: list[StoreRequest] = []
        OBSERVE.needed(self.once.store)(self._told.append)

    def taken(self) -> str:
        """Return the requests and units since the last time."""
        units, requests = sum(one.units or 0.0 for one in self._told), len(self._told)
        self._told.clear()
        return f"{requests} requests, {units:g} units"


def index(server: Dynoxide) -> None:
    """Print what a first call costs with and without the index, and what the dashboard's first look does."""
    print("\nthe index of what is not completed")
    for name, option in (("without it", ""), ("with it", "&index=open")):
        table = server.table(f"index-{len(option)}", opened=True)
        meter = Meter(f"dynamodb://{table}?endpoint={server.url}{option}")
        claim = meter.once.acquire("a")
        print(f"  {name}: claim {meter.taken()}", end="; ")
        claim.complete(1)
        print(f"completion {meter.taken()}", end="; ")
        claim = meter.once.acquire("b")
        meter.taken()
        claim.release()
        print(f"release {meter.taken()}", end="; ")
        meter.once.acquire("b").complete(1)
        print(f"claim and completion of what was released {meter.taken()}")
    _fill(meter)
    print(f"  {COMPLETED_RECORDS:,} completed and {PARKED_RECORDS} parked records:")
    survey = meter.once.ledger.survey()
    print(f"  counts of {survey.counts[PARKED]} parked by it: {meter.taken()}")
    trouble(meter.once.ledger, survey)
    print(f"  what needs a person, as on the dashboard's first page: {meter.taken()}")
    found = sum(len(page.records) for page in meter.once.ledger.pages(status=PARKED, limit=50))
    print(f"  a list of {found} parked by it: {meter.taken()}")
    meter.once.ledger.stats()
    print(f"  counts by reading the table: {meter.taken()}")


def _fill(meter: Meter) -> None:
    writes = [
        ended(first_claim(f"shop:{n}", f"owner {n}", None, meter.once.policy), status, '{"receipt":1}', "CardDeclined")
        for n, status in enumerate([COMPLETED] * COMPLETED_RECORDS + [PARKED] * PARKED_RECORDS)
    ]
    for start in range(0, len(writes), BATCH):
        drive(meter.once.store.insert_many(writes[start : start + BATCH]), meter.once.store)
    meter.taken()
