"""A time limit is an exception raised from outside, at any moment: what the handler has done is recorded all the same."""

import asyncio
import sqlite3

import pytest

from onceward import Once, current
from onceward.claim.lease import CURRENT
from onceward.core.record import RELEASED
from onceward.results.firmly import firmly
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before, settling, when


class SoftTimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException."""


@pytest.fixture(autouse=True)
def outside():
    """A block whose end an interrupt has skipped leaves its claim in the context."""
    yield
    CURRENT.set(None)


def test_a_failure_is_recorded_although_a_time_limit_strikes_meanwhile():
    store = Faults(MemoryStore(), when(settling, fail_before(SoftTimeLimit), times=1))

    def handle():
        raise ZeroDivisionError

    with pytest.raises(SoftTimeLimit) as raised:
        Once(store, name="n").run("k", handle)
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    assert [(r.status, r.error) for r in store.store.records.values()] == [(RELEASED, "ZeroDivisionError")]


@pytest.mark.parametrize("form", ["call", "await"])
def test_a_time_limit_in_the_claim_gives_the_key_back(form):
    store = Faults(MemoryStore(), when(lambda ask: ask.verb == "insert", fail_after(SoftTimeLimit), times=1))
    once = Once(store, name="n")
    with pytest.raises(SoftTimeLimit):
        once.run("k", pytest.fail) if form == "call" else asyncio.run(once.run_async("k", pytest.fail))
    assert [(r.status, r.attempts) for r in store.store.records.values()] == [(RELEASED, 0)]


def test_a_store_that_breaks_its_contract_still_says_handler_succeeded():
    store = Faults(MemoryStore(), when(settling, fail_before(ValueError)))
    with pytest.raises(ValueError, match="swap") as raised:
        Once(store, name="n").run("k", lambda: "done")
    assert "the handler succeeded" in "".join(raised.value.__notes__)


def test_a_time_limit_within_the_encoding_is_not_taken_for_a_bad_result():
    strikes = [SoftTimeLimit()]

    class Result(dict):
        def items(self):
            if strikes:
                raise strikes.pop()
            return super().items()

    with pytest.raises(SoftTimeLimit):
        firmly(lambda result: str(list(result.items())), Result(a=1))
    assert firmly(lambda result: str(list(result.items())), Result(a=1)) == "[('a', 1)]"
    assert isinstance(firmly(int, "x"), ValueError)  # what it raises each time


def test_a_transaction_whose_end_was_interrupted_is_rolled_back_first(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db?timeout=0.2", name="n")
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")

    def handle():
        transaction = current().transaction(connection)
        transaction.__enter__()
        connection.execute("INSERT INTO effects VALUES (1)")
        raise SoftTimeLimit  # as its __exit__ begins

    with pytest.raises(SoftTimeLimit) as raised:
        once.run("k", handle)
    assert not getattr(raised.value, "__notes__", ())
    assert not connection.in_transaction
    assert [record.status for record, _ in once.ledger.records()] == [RELEASED]
    once.close()
