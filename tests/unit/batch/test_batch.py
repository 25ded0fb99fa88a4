"""Batches: claimed together, run in each form, recorded together, and what goes wrong with one harms no other."""

import asyncio
import threading
import time

import pytest

from faults.injected import Faults
from onceward import Busy, KeyMissing, Mismatch, Once, OncewardError, Parked, current
from onceward.batch.recorder import LINGER
from onceward.core.record import COMPLETED, RELEASED
from queues.batches import batch_of, never, orders, standing, statuses

pytestmark = pytest.mark.sampled(form=1)


def counted(once):
    return Once(Faults(once.store, lambda ask: None), lease=10)


def test_each_kind_of_trouble_is_its_own_records(form, once):
    @once(key="order.id", name="b", final=(LookupError,))
    def charge(order):
        raise LookupError("no such card")

    with pytest.raises(LookupError):
        charge({"id": "final"})
    once.acquire("busy", name="b")
    once.acquire("parked", name="b").park("by a person")
    once(key="order.id", fingerprint="order.sum", name="b")(lambda order: 1)({"id": "mismatch", "sum": 1})

    def handle(order):
        if order["id"] == "bad":
            raise ValueError("no good")
        return order["id"]

    records = [{"id": name, "sum": 2} for name in ("fine", "bad", "busy", "parked", "mismatch", None, "final", "too")]
    batch = form.batch(once, handle, fingerprint="order.sum", final=(LookupError,), max_attempts=2)
    outcomes = form.run(batch, records)
    assert statuses(outcomes) == ["done", "failed", "busy", "parked", "mismatch", "malformed", "replayed", "done"]
    kinds = [type(outcome.error) for outcome in outcomes]
    assert kinds == [type(None), ValueError, Busy, Parked, Mismatch, KeyMissing, LookupError, type(None)]
    assert 0 < outcomes[2].error.retry_after <= 10
    assert [outcome.record for outcome in outcomes] == records
    assert (outcomes[0].key, outcomes[0].value, outcomes[5].key) == ("b:fine", "fine", None)
    assert [outcome.ok for outcome in outcomes] == [True, False, False, False, False, False, True, True]
    assert (standing(once, "bad").status, standing(once, "bad").error) == (RELEASED, "ValueError: no good")
    (again,) = form.run(batch, records[1:2])
    assert (again.status, type(again.error)) == ("parked", ValueError)
    assert type(form.run(batch, records[1:2])[0].error) is Parked


def test_a_key_twice_in_a_batch_runs_once_and_shares_the_fate_of_the_first(form, once):
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "bad":
            raise ValueError
        return [order["id"]]

    once.acquire("busy", name="b")
    outcomes = form.run(form.batch(once, handle), orders("a", "b", "a", "a", "bad", "busy", "bad", "busy"))
    assert statuses(outcomes) == ["done", "done", "replayed", "replayed", "failed", "busy", "failed", "busy"]
    assert [outcome.value for outcome in outcomes[:4]] == [["a"], ["b"], ["a"], ["a"]]
    assert len({id(outcome.value) for outcome in outcomes[:4]}) == 4
    assert sorted(ran) == ["a", "b", "bad"]
    assert statuses(form.run(form.batch(once, never), orders("a", "a"))) == ["replayed", "replayed"]
    marked = form.batch(once, lambda order: 1, fingerprint="order.sum")
    records = [{"id": "m", "sum": 1}, {"id": "m", "sum": 2}, {"id": "m", "sum": 1}]
    assert statuses(form.run(marked, records)) == ["done", "mismatch", "replayed"]
    assert statuses(form.run(marked, records[:2])) == ["replayed", "mismatch"]


def test_a_batch_is_one_claim_and_one_recording(form, once):
    def fails(order):
        raise ValueError

    records = orders(*(f"k{n}" for n in range(10)))
    for handle, verbs in (
        (fails, {"insert_many", "swap_many"}),
        (lambda order: order["id"], {"insert_many", "swap_many"}),  # the second try is claimed together, too
        (never, {"insert_many"}),
    ):
        watched = counted(once)
        form.run(form.batch(watched, handle), records)
        assert {ask.verb for ask in watched.store.asked} == verbs
        assert {len(ask.writes) for ask in watched.store.asked if ask.verb == "insert_many"} == {10}


@pytest.mark.parametrize("most", [100, 3], ids=["retry", "park"])
def test_large_batches_are_claimed_in_chunks_of_a_hundred_or_what_begins_now(form, once, most):
    options = {"on_lapse": "park", "concurrency": most} if most < 100 else {}
    ran = []
    records = orders(*(f"k{n}" for n in range(250)))
    watched = counted(once)
    batch = form.batch(watched, lambda order: ran.append(order["id"]), **options)
    outcomes = form.run(batch, [*records, records[0]])
    assert statuses(outcomes) == ["done"] * 250 + ["replayed"]
    assert len(ran) == len(set(ran)) == 250
    assert max(len(ask.writes) for ask in watched.store.asked if ask.verb == "insert_many") == most


def test_with_park_the_first_of_each_group_begin_together(form, once):
    watched, ran = counted(once), []
    options = {"on_lapse": "park", "concurrency": 3, "group": lambda order: order["id"][0]}
    batch = form.batch(watched, lambda order: ran.append(order["id"]), **options)
    outcomes = form.run(batch, orders("a1", "a2", "b1", "a1", "c1", "b2", "c2", "a3"))
    assert [outcome.status for outcome in outcomes] == ["done"] * 3 + ["replayed"] + ["done"] * 4
    claims = [
        " ".join(write.key[-2:] for write in ask.writes) for ask in watched.store.asked if ask.verb == "insert_many"
    ]
    assert list(dict.fromkeys(claims)) == ["a1 b1 c1", "a2 b2 c2", "a3"]
    assert [key for key in ran if key < "b"] == ["a1", "a2", "a3"]
    groups = iter("hhgg")
    batch = form.batch(once, lambda order: None, **options | {"concurrency": 8, "group": lambda _: next(groups)})
    outcomes = form.run(batch, orders("first", "second", "first", "last"))
    assert [outcome.status for outcome in outcomes] == ["done", "done", "replayed", "done"]


def test_what_is_finished_is_recorded_while_another_handler_runs(once):
    found = []

    def handle(order):
        until = time.monotonic() + 5
        while order["id"] == "slow" and time.monotonic() < until and not found:
            time.sleep(LINGER / 4)
            found.extend([1] if standing(once, "fast").status == COMPLETED else [])

    batch_of(once, handle).run(orders("fast", "slow"))
    assert found == [1]


def test_no_more_than_the_bound_run_at_a_time_and_as_many_do(once):
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(4, timeout=60)

    def handle(order):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    batch = batch_of(once, handle, concurrency=4)
    assert statuses(batch.run(orders(*(f"k{n}" for n in range(12))))) == ["done"] * 12
    assert most == 4
    assert statuses(asyncio.run(batch.run_async(orders(*(f"l{n}" for n in range(12)))))) == ["done"] * 12
    assert most == 4


def test_all_calls_of_one_event_loop_share_the_bound(once):
    running = most = 0

    async def handle(order):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    batch = batch_of(once, handle, concurrency=3)

    async def several():
        await asyncio.gather(*(batch.run_async(orders(f"{n}a", f"{n}b", f"{n}c")) for n in range(5)))

    asyncio.run(several())
    assert most == 3


def test_a_handler_may_end_its_claim_itself(form, once):
    def handle(order):
        end, told = {"a": ("complete", "mine"), "b": ("release", "later"), "c": ("park", "never")}[order["id"]]
        getattr(current(), end)(told)

    outcomes = form.run(form.batch(once, handle), orders("a", "b", "c"))
    assert statuses(outcomes) == ["done", "failed", "parked"]
    assert form.run(form.batch(once, never), orders("a"))[0].value == "mine"
    assert standing(once, "b").error == "later"


def test_a_batch_of_the_key_that_is_being_handled_is_told(once):
    batch = batch_of(once, lambda order: 1)
    outer = batch_of(once, lambda order: statuses(batch.run(orders("a", "b"))))
    assert outer.run(orders("a"))[0].value == ["failed", "done"]


def grouped(*names):
    return [{"id": name, "group": name[0]} for name in names]


def test_after_a_failure_the_rest_of_its_group_is_deferred_and_given_back(form, once):
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "x1":
            raise ValueError

    records, watched = grouped("x0", "y0", "x1", "y1", "x2", "y2", "x3"), counted(once)
    outcomes = form.run(form.batch(watched, handle, group=lambda order: order["group"], max_attempts=1), records)
    given_back = [{write.key for write in ask.writes} for ask in watched.store.asked if ask.verb == "swap_many"]
    assert {"b:x2", "b:x3"} in given_back, "one request gives all of them back"
    assert statuses(outcomes) == ["done", "done", "parked", "done", "deferred", "done", "deferred"]
    assert sorted(ran) == ["x0", "x1", "y0", "y1", "y2"]
    assert standing(once, "x2").status == RELEASED
    assert standing(once, "x2").attempts == 0
    assert standing(once, "x2").fingerprint is None
    assert statuses(form.run(form.batch(once, lambda order: 1, max_attempts=1), grouped("x2", "x3"))) == ["done"] * 2


@pytest.mark.parametrize("trouble", ["busy", "malformed"])
def test_a_group_stops_also_at_what_cannot_begin(form, once, trouble):
    records = grouped("x0", "x1", "x2", "y0")
    if trouble == "busy":
        once.acquire("x1", name="b")
    else:
        del records[1]["id"]
    outcomes = form.run(form.batch(once, lambda order: 1, group=lambda order: order["group"]), records)
    assert statuses(outcomes) == ["done", trouble, "deferred", "done"]


def test_a_group_stays_stopped_in_later_chunks(form, once):
    def handle(order):
        if order["id"] == "x50":
            raise ValueError

    records = grouped(*(f"x{n}" for n in range(320)))
    outcomes = form.run(form.batch(once, handle, group=lambda order: 0), records)
    assert statuses(outcomes) == ["done"] * 50 + ["failed"] + ["deferred"] * 269
    with pytest.raises(OncewardError, match="no such key"):
        standing(once, "x100")  # it was not even claimed


def test_each_outcome_is_told_once_when_it_is_recorded(form, once):
    told = []

    def tell(outcome):
        told.append(outcome)
        if outcome.status == "done":
            assert standing(once, outcome.record["id"]).status == COMPLETED
        raise RuntimeError("of the metrics' own")

    def handle(order):
        if order["id"] == "bad":
            raise ValueError

    batch = form.batch(once, handle)
    batch.heard = tell
    outcomes = form.run(batch, [*orders("a", "bad", "a"), {}])
    assert sorted(statuses(told)) == sorted(statuses(outcomes)) == ["done", "failed", "malformed", "replayed"]


def test_bad_options_are_refused_before_anything(once):
    async def coroutine(order): ...

    left = lambda seconds: lambda: batch_of(once, never).run(orders("a"), time_left=seconds)
    for make, error, says in (
        (left(float("nan")), ValueError, "time_left="),
        (left("5"), TypeError, "time_left="),
        (lambda: batch_of(once, never, group=coroutine), TypeError, "group"),
        (lambda: once.batch(never, key="order.id", concurrency=0), ValueError, "concurrency=0"),
        (lambda: once.batch(once(key="order.id")(never), key="order.id"), TypeError, "guarded already"),
        (lambda: once.batch(never, key="order.id", leese=1), TypeError, "unknown option"),
        (lambda: batch_of(once, coroutine).run(orders("a")), TypeError, "run_async"),
    ):
        with pytest.raises(error, match=says):
            make()
    assert not once.store.records
