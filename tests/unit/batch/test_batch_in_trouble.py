"""Batches whose time, leases or ledger come to an end: what goes wrong with one harms no other."""

import signal
import threading
import time
from contextlib import suppress

import pytest

from faults.injected import Faults, at, fail_after, fail_before
from onceward import Busy, LeaseLost, Once, ResultUnavailable, StoreError, current
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from queues.batches import batch_of, never, orders, standing, statuses
from waiting import within

pytestmark = pytest.mark.sampled(form=1)


def test_what_cannot_begin_in_time_is_handed_back(form, once):
    def handle(order):
        ran.append(order["id"])
        time.sleep(0.2)

    batch = form.batch(once, handle, concurrency=1)

    def attempt(number):
        ran.clear()
        return form.run(batch, orders(*(f"{number}:{n}" for n in range(50))), time_left=1)

    ran = []
    outcomes = within(1.4, attempt)  # a slow disk included; all would take 10
    done = statuses(outcomes).count("done")
    assert 1 <= done == len(ran) <= 5
    assert statuses(outcomes) == ["done"] * done + ["deferred"] * (50 - done)
    with once.claim("0:49", name="b") as claim:  # nobody holds it, and no attempt was counted
        assert claim.attempt == 1


def test_no_lease_outlives_the_deadline(form, once):
    seen = []

    def handle(order):
        record, now = once.ledger.show(f"b:{order['id']}")
        seen.append(record.lease_until - now)

    form.run(form.batch(once, handle), orders("a"), time_left=4)
    form.run(form.batch(once, handle, lease=2), orders("b"), time_left=40)
    assert 3.5 < seen[0] < 4.5
    assert 1.5 < seen[1] <= 2


def test_a_renewed_lease_ends_with_the_deadline_and_is_not_renewed_again_before(form, once):
    seen = []

    def handle(order):
        seen.append(standing(once, order["id"]))
        time.sleep(1.2)
        seen.append(standing(once, order["id"]))

    form.run(form.batch(once, handle, lease=2, heartbeat=0.15), orders("a"), time_left=2.4)
    # A beat each 0.15 s would be eight of them, and would move the end of the lease by a second.
    assert 1 <= seen[1].beat <= 5
    assert seen[1].lease_until - seen[0].lease_until < 0.6


def test_claims_that_wait_for_their_turn_are_renewed(form, once):
    def handle(order):
        time.sleep(0.25)
        return current().lost

    batch = form.batch(once, handle, lease=1, concurrency=1)
    outcomes = form.run(batch, orders("a", "b", "c", "d", "e"))
    assert [(outcome.status, outcome.value) for outcome in outcomes] == [("done", False)] * 5


def test_a_claim_that_was_lost_is_told_stops_its_group_and_harms_no_other(form, once):
    def inherit():
        once.ledger.clear("b:lost", live=True)
        once.acquire("lost", name="b").complete("the heir's")

    def handle(order):
        if order["id"] == "lost":
            heir = threading.Thread(target=inherit)
            heir.start()
            heir.join()
        return "mine"

    records = orders("lost", "other", *range(99))  # the last is in a later chunk
    outcomes = form.run(form.batch(once, handle, group=lambda order: order["id"] == "other"), records)
    assert [statuses(outcomes)[number] for number in (0, 1, -1)] == ["failed", "done", "deferred"]
    assert type(outcomes[0].error) is LeaseLost
    assert form.run(form.batch(once, never), orders("lost"))[0].value == "the heir's"


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", [fail_before, fail_after])
def test_a_lost_request_or_reply_changes_nothing(form, once, number, fault):
    ran = []
    faulty = Once(Faults(once.store, at({number: fault()})), lease=10)
    batch = form.batch(faulty, lambda order: ran.append(order["id"]) or order["id"])
    records = orders("a", "b", "c")
    assert statuses(form.run(batch, records)) == ["done"] * 3
    assert sorted(ran) == ["a", "b", "c"]
    assert [outcome.value for outcome in form.run(form.batch(once, never), records)] == ["a", "b", "c"]


def test_a_store_that_is_away_at_the_claim_runs_nothing(form, once, monkeypatch):
    monkeypatch.setattr("onceward.core.many.CLAIM_PATIENCE", 0.1)
    away = Once(Faults(once.store, lambda ask: fail_before()), lease=10)
    outcomes = form.run(form.batch(away, never), orders("a", "b"))
    assert statuses(outcomes) == ["failed", "failed"]
    assert {type(outcome.error) for outcome in outcomes} == {StoreError}


class Picky(MemoryStore):
    """Refuses for good what has to do with one key, as a store does with an item that is too large."""

    def insert(self, write):
        if write.key == "b:never":
            raise StoreError("too large")
        return super().insert(write)

    def swap(self, write, seen):
        if write.key == "b:bad" or (write.key == "b:huge" and write.result and len(write.result) > 50):
            raise StoreError("too large")
        return super().swap(write, seen)


@pytest.mark.filterwarnings("default::onceward.ResultWarning")
def test_a_record_that_the_store_refuses_harms_no_other(form):
    once = Once(Picky(), lease=10)

    def handle(order):
        if order["id"] == "bad":
            raise ValueError
        return "x" * 60

    outcomes = form.run(form.batch(once, handle), orders("a", "never", "huge", "bad", "b"))
    assert statuses(outcomes) == ["done", "failed", "done", "failed", "done"]
    assert [type(outcome.error) for outcome in outcomes if not outcome.ok] == [StoreError, ValueError]
    assert "too large" in outcomes[3].error.__notes__[0]
    again = form.run(form.batch(once, never), orders("a", "huge", "b"))
    assert statuses(again) == ["replayed"] * 3
    assert [type(outcome.error) for outcome in again] == [type(None), ResultUnavailable, type(None)]


@pytest.mark.parametrize(("interrupt", "concurrency"), [(KeyboardInterrupt, 1), (SystemExit, 3)])
def test_an_interrupt_records_what_is_finished_and_gives_back_the_rest(once, interrupt, concurrency):
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "c":
            raise interrupt

    batch = batch_of(once, handle, concurrency=concurrency, group=lambda order: 0)
    with pytest.raises(interrupt):
        batch.run(orders("a", "b", "c", "d", "e"))
    assert ran == ["a", "b", "c"]
    assert [standing(once, key).status for key in "abcde"] == [COMPLETED, COMPLETED, IN_PROGRESS, RELEASED, RELEASED]
    assert standing(once, "d").attempts == 0


def test_an_interrupt_in_the_claim_gives_back_what_was_won(once):
    struck = Once(Faults(once.store, at({1: fail_after(KeyboardInterrupt)})))
    with pytest.raises(KeyboardInterrupt):
        batch_of(struck, never).run(orders("a", "b"))
    assert [(standing(once, key).status, standing(once, key).attempts) for key in "ab"] == [(RELEASED, 0)] * 2


def test_a_handler_that_runs_on_after_a_second_interrupt_keeps_its_key(tmp_path):
    begun, end = threading.Event(), threading.Event()

    def handle(record):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            end.wait(60)
            raise ValueError
        begun.wait(60)
        signal.setitimer(signal.ITIMER_REAL, 0.3)  # while the other is waited for
        raise KeyboardInterrupt

    url, before = f"sqlite:///{tmp_path}/ledger.db", signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Once(url).batch(handle, key=lambda record: record, name="b", concurrency=2, lease=2).run(["one", "two"])
        time.sleep(3.0)
        other = Once(url, name="b", on_busy="raise")
        took = []
        for key in ("one", "two"):
            with suppress(Busy):
                took.append(other.run(key, lambda key=key: key))
        assert len(took) == 1
        end.set()
        (running,) = {"one", "two"} - {*took}
        assert Once(url, name="b", on_busy=30).run(running, lambda: "it lapsed") == "it lapsed"
    finally:
        end.set()
        signal.signal(signal.SIGALRM, before)
