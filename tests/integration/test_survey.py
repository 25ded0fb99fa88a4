"""What the dashboard asks of a store: counts in bounded time, handlers without a scan, and prefixes by an index."""

import random

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.views import STATES, Criteria
from onceward.core.writes import ended, first_claim
from onceward.dashboard.needs import RecordQuery
from onceward.dashboard.searching import names
from onceward.stores.sql import store as of_postgres
from onceward.stores.sqlite import inspection as of_sqlite
from servers.needs import numbers

pytestmark = pytest.mark.sampled(once=1)

NAMES = sorted(
    ["a", "a.b", "a-b", "ab", "mail", "shop.charge", "é.ü", "\U0001f600"], key=lambda name: f"{name}:".encode()
)
_NUMBERS = numbers()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def once(request, tmp_path):
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/ledger.db"}.get(request.param)
    made = Once(url or f"{request.getfixturevalue('postgres15').url}?schema=survey_{next(_NUMBERS)}")
    yield made
    made.close()


def write(once, key, status, **more):
    claim = first_claim(key, f"of {key}", None, once.policy)
    made = claim._replace(lease=-5.0) if status == "LAPSED" else claim if status == IN_PROGRESS else None
    made = made or ended(claim, status, "1" if status == COMPLETED else None, None)
    drive(once.store.insert(made._replace(**more)), once.store)


@pytest.fixture
def mixed(once):
    """A ledger with records in all states, in random order."""
    kinds = [COMPLETED] * 40 + [PARKED] * 7 + [RELEASED] * 5 + [IN_PROGRESS] * 3 + ["LAPSED"] * 2
    random.Random(1).shuffle(kinds)
    for number, kind in enumerate(kinds):
        write(once, f"{NAMES[number % len(NAMES)]}:{number}", kind)
    write(once, "a:unsent", COMPLETED, keep=None, unsent="{}", due=60.0)
    write(once, "a:old", COMPLETED, keep=-1.0)  # last: a later write can delete it
    return once


def truth(once):
    """Count each state by reading."""
    return {state: len(list(once.ledger.records(status=state))) for state in STATES}


def test_a_small_ledger_is_counted_exactly(mixed):
    survey = mixed.ledger.survey()
    assert survey.counts == truth(mixed)
    assert (survey.total, survey.exact) == (59, True)


def test_a_large_ledger_tells_what_its_indexes_have(mixed, monkeypatch):
    for module in (of_sqlite, of_postgres):
        monkeypatch.setattr(module, "READ", 10)
    survey, counted = mixed.ledger.survey(), truth(mixed)
    assert {PARKED, RELEASED, "UNSENT", "REFUSED"} <= survey.counts.keys()
    assert {state: counted[state] for state in survey.counts} == survey.counts
    if not survey.exact:
        assert not RecordQuery(Criteria((COMPLETED,)), "", None).is_quick(survey)
        assert RecordQuery(Criteria((PARKED,)), "", None).is_quick(survey)
        assert RecordQuery(Criteria(("UNSENT",)), "", None).is_quick(survey)


def test_each_handler_is_found_by_skipping_the_others_keys(mixed):
    write(mixed, "no colon", PARKED)
    found, more = names(mixed.ledger, mixed.ledger.survey())
    assert (found, more) == (NAMES, False)


def test_a_large_ledger_is_estimated_by_its_survey(mixed, monkeypatch):
    ledger = mixed.ledger
    assert ledger.estimate() is None, "reading it is as fast"
    for module in ("ledger_reader", "sqlite.inspection", "sql.store"):
        monkeypatch.setattr(f"onceward.stores.{module}.READ", 10)
    estimate = ledger.estimate()
    if mixed.store.url.startswith("sqlite:"):
        assert estimate is None, "its indexes do not count what is in progress"
        return
    counts, estimated = estimate
    read = ledger.stats()
    exact = mixed.store.url == "memory:"
    assert estimated == (set() if exact else {"total", COMPLETED})
    known = counts.keys() - estimated
    assert {name: counts[name] for name in known} == {name: read[name] for name in known}
    assert exact or counts["total"] >= 15
