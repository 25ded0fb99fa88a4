"""A record whose status a newer version has written is left alone."""

import asyncio
import sqlite3

import pytest

from onceward import Busy, Once, OncewardError, UnknownStatus
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, is_live
from onceward.stores.memory import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def once(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db"
    once = Once(store, name="n", lease=1, retention=1)
    once.run("k", int)
    (held,) = [record for record, _ in once.ledger.records()]
    if request.param == "memory":
        store.records["n:k"] = held._replace(status="QUEUED", expires_at=held.lease_until, lease_until=0.0)
    else:
        with sqlite3.connect(tmp_path / "ledger.db") as connection:
            connection.execute("UPDATE onceward SET status = 'QUEUED', expires_at = 1, lease_until = 0")
        connection.close()
    yield once
    once.close()


def never(key):
    pytest.fail(key)


def test_it_is_refused_although_it_is_expired_and_says_who_may_know_it(once):
    with pytest.raises(UnknownStatus, match=r"n:k: its record has the status 'QUEUED'.*upgrade onceward") as raised:
        once.run("k", pytest.fail)
    assert (raised.value.key, raised.value.status) == ("n:k", "QUEUED")


def test_it_is_refused_to_coroutines_claims_batches_and_checkpoints(once):
    with pytest.raises(UnknownStatus):
        asyncio.run(once.run_async("k", pytest.fail))
    with pytest.raises(UnknownStatus):
        once.acquire("k", name="n")
    (outcome,) = once.batch(never, key="key", name="n").run(["k"])
    assert (outcome.status, type(outcome.error)) == ("failed", UnknownStatus)
    with once.checkpoint(pytest.fail, key=lambda item: item, name="n") as sink, pytest.raises(UnknownStatus):
        sink.add("k")


def test_stats_count_it_under_its_own_name(once):
    assert once.ledger.stats()["QUEUED"] == 1
    assert once.ledger.stats()["total"] == 1


def test_it_cannot_be_parked_or_unparked_and_is_not_purged(once):
    with pytest.raises(OncewardError, match="it is QUEUED"):
        once.ledger.park("n:k")
    with pytest.raises(OncewardError, match="it is QUEUED"):
        once.ledger.unpark("n:k")
    assert once.ledger.purge() == 0
    assert once.ledger.show("n:k")[0].status == "QUEUED"


def test_it_can_be_cleared_by_hand_and_while_its_lease_lasts_only_when_that_is_said(once):
    held, _ = once.ledger.show("n:k")
    assert is_live(held._replace(lease_until=10.0), 5.0)
    assert once.ledger.clear("n:k").status == "QUEUED"
    assert once.run("k", int) == 0
    assert issubclass(Busy, OncewardError)


def test_no_option_of_a_policy_makes_it_claimable(once):
    held, _ = once.ledger.show("n:k")
    for policy in (Policy(), Policy(on_lapse="park"), Policy(max_attempts=1), Policy(on_busy="skip")):
        for owner in (held.owner, "other"):
            assert decide(held, 1e12, owner, "another", policy) is Verdict.UNKNOWN
