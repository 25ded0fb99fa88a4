"""A record whose status a newer version has written, or that needs what a newer version knows, is left alone."""

import pytest

from onceward import Once, OncewardError, UnknownNeed, UnknownStatus
from onceward.core import protocol
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, is_mine, judge, keeping
from onceward.core.views import NextStep, next_step
from onceward.stores.memory import MemoryStore
from onceward.testing.bench import claim_of


@pytest.fixture
def once():
    once = Once(MemoryStore(), name="n", lease=1, retention=1)
    once.run("k", int)
    held = once.store.records["n:k"]
    once.store.records["n:k"] = held._replace(status="QUEUED", expires_at=held.lease_until, lease_until=0.0)
    return once


def never(key):
    pytest.fail(key)


def test_it_is_refused_although_it_is_expired_and_says_who_may_know_it(once):
    with pytest.raises(UnknownStatus, match=r"n:k: its record has the status 'QUEUED'.*upgrade onceward") as raised:
        once.run("k", pytest.fail)
    assert (raised.value.key, raised.value.status) == ("n:k", "QUEUED")
    (outcome,) = once.batch(never, key="key", name="n").run(["k"])
    assert (outcome.status, type(outcome.error)) == ("failed", UnknownStatus)
    with once.checkpoint(pytest.fail, key=lambda item: item, name="n") as sink, pytest.raises(UnknownStatus):
        sink.add("k")


def test_it_cannot_be_parked_or_purged_but_cleared_by_hand(once):
    for change in (once.ledger.park, once.ledger.unpark):
        with pytest.raises(OncewardError, match="it is QUEUED"):
            change("n:k")
    assert once.ledger.purge() == 0
    assert once.ledger.clear("n:k").status == "QUEUED"
    assert once.run("k", int) == 0


def test_no_option_of_a_policy_makes_it_claimable(once):
    held, _ = once.ledger.show("n:k")
    for policy in (Policy(), Policy(on_lapse="park"), Policy(max_attempts=1), Policy(on_busy="skip")):
        for owner in (held.owner, "other"):
            assert decide(held, 1e12, owner, "another", policy) is Verdict.UNKNOWN


def needing(once, needs):
    """Have the record need features, as a newer version writes it."""
    once.store.records["n:k"] = once.store.records["n:k"]._replace(status="COMPLETED", needs=needs)
    return once.ledger.show("n:k")[0]


def test_a_key_that_needs_unknown_feature_is_refused_with_what_to_deploy(once):
    held = needing(once, "chunks sagas")
    with pytest.raises(
        UnknownNeed, match=r"n:k: its record needs chunks, sagas,.*deploy the newer version on all workers"
    ) as raised:
        once.run("k", pytest.fail)
    assert (raised.value.key, raised.value.needs) == ("n:k", ["chunks", "sagas"])
    (outcome,) = once.batch(never, key="key", name="n").run(["k"])
    assert type(outcome.error) is UnknownNeed
    assert once.ledger.show("n:k")[0] == held


def test_only_clearing_by_hand_changes_record_that_needs_unknown_feature(once):
    held = needing(once, "chunks")
    for change in (once.ledger.park, once.ledger.unpark):
        with pytest.raises(UnknownNeed):
            change("n:k")
    assert keeping(held._replace(status="PARKED"), "message") is None
    assert once.ledger.purge() == 0
    assert once.ledger.show("n:k")[0] == held
    assert next_step(held, 1e12) is NextStep.UPGRADE
    assert once.ledger.clear("n:k") == held


def test_a_need_that_is_known_is_no_obstacle(once, monkeypatch):
    monkeypatch.setattr(protocol, "NEEDS", frozenset({"chunks"}))
    needing(once, "chunks")
    assert once.run("k", int) == 0
    assert once.ledger.show("n:k")[0].needs == "chunks"


def test_a_need_that_came_while_it_worked_takes_the_claim_from_its_owner():
    held = claim_of("k", "me").at(1.0)
    assert is_mine(held, held)
    needy = held._replace(needs="chunks")
    assert not is_mine(needy, held)
    assert judge(needy._replace(status="COMPLETED"), "me", "COMPLETED") is protocol.Ending.LOST
