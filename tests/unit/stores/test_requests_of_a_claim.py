"""How many requests a claim takes: the counts that docs/explanation/architecture.md promises."""

import pytest

from onceward import Once
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing import Faults, ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    clock = ManualClock()
    store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "ledger.db", clock=clock)
    yield clock, Faults(store, lambda ask: None)
    store.close()


def requests_of(store, call, *errors):
    before = len(store.asked)
    try:
        call()
    except errors:
        pass
    return len(store.asked) - before


def fail():
    raise ValueError("boom")


def test_a_first_call_takes_two_a_duplicate_one_a_failed_one_two_and_its_retry_three(ledger):
    _, store = ledger
    once = Once(store, name="n")
    assert requests_of(store, lambda: once.run("k", int)) == 2
    assert requests_of(store, lambda: once.run("k", int)) == 1
    assert requests_of(store, lambda: once.run("other", fail), ValueError) == 2
    assert requests_of(store, lambda: once.run("other", int)) == 3
