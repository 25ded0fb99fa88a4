"""What a real ledger's workload is like: how many messages come, and how large their results are."""

import time
from collections.abc import Callable
from statistics import fmean
from typing import Final

from onceward.core.drivers import drive
from onceward.core.record import COMPLETED
from onceward.errors import StoreError
from onceward.stores.capabilities import RATES, SURVEY
from onceward.stores.contract import Store
from onceward.stores.costs import Workload

_SAMPLE: Final = 200  # records that are read for their sizes
_DAY: Final = 86400


def measured(
    store: Store, seconds: float, load: Workload, *, sleep: Callable[[float], object] = time.sleep
) -> tuple[Workload, list[str]]:
    """Return the workload of a real ledger, and what could not be measured. ``load`` has the values for that.

    DynamoDB's rates are those of the last ``seconds`` in CloudWatch. Other stores are looked at twice, ``seconds`` apart: they
    count new keys, and a duplicate leaves no trace there.

    Raises:
        StoreError: the ledger cannot be read, or does not count what comes.
    """
    unknown = []
    page = drive(store.scan("", None, _SAMPLE), store)
    done = [record for record in page.records if record.status == COMPLETED]
    if done:
        load = load._replace(
            result=round(fmean(len((record.result or "").encode()) for record in done)),
            key=round(fmean(len(record.key.encode()) for record in done)),
        )
    else:
        unknown.append("the size of results: the ledger has no completed record among its first")
    rates = RATES.of(store)
    if rates is not None:
        found = rates(seconds)
        return load._replace(messages=found.deliveries * _DAY, duplicates=found.duplicates), unknown
    new = _arrived(store, seconds, sleep)
    unknown.append("the share of duplicates: they leave no trace in this store; --duplicates says it")
    return load._replace(messages=new * _DAY / max(1e-9, 1 - load.duplicates)), unknown


def _arrived(store: Store, seconds: float, sleep: Callable[[float], object]) -> float:
    """Return the new keys a second."""
    survey = SURVEY.of(store)
    if survey is None:
        raise StoreError(f"{store.url} does not count what comes: give --messages")
    before = drive(survey(), store)
    sleep(seconds)
    after = drive(survey(), store)
    if before.arrived is None or after.arrived is None:
        raise StoreError(f"{store.url} does not count what comes: give --messages")
    return max(0, after.arrived - before.arrived) / max(seconds, after.now - before.now)
