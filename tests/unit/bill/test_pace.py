"""`onceward bench` measures by real calls, keeps to its rate, and leaves nothing behind."""

import pytest

from onceward import Once
from onceward.bill.pace import DOCUMENTED, Pace, Timed, verdicts
from onceward.errors import StoreError
from onceward.testing.clock import ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def once(request, tmp_path):
    made = Once("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db", name="mine")
    for number in range(3):
        made.run(f"order-{number}", lambda: "paid")
    yield made
    made.close()


def paced(once, seconds=4.0, rate=20.0):
    clock = ManualClock()
    return Pace(once, seconds, rate, clock=clock, sleep=clock.advance), clock


def keys(once):
    return {record.key for record, _ in once.ledger.records()}


@pytest.mark.parametrize("once", ["sqlite"], indirect=True)  # memory has no batches of its own
def test_each_operation_is_made_and_asks_as_often_as_documented(once):
    pace, _ = paced(once)
    timed = {one.name: one for one in pace.run()}
    assert timed.keys() == DOCUMENTED.keys()
    assert timed["claim"].times == timed["complete"].times == 40
    assert timed["duplicate"].times == 20
    assert timed["batch"].times == 2
    assert {name: one.requests for name, one in timed.items()} == DOCUMENTED
    assert pace.errors == {}


def test_percentiles_are_in_order(once):
    for one in paced(once)[0].run():
        assert list(one.seconds) == sorted(one.seconds)


def test_all_its_records_are_deleted_and_no_others(once):
    mine = keys(once)
    pace, _ = paced(once)
    pace.run()
    written = keys(once) - mine
    assert 0 < len(written) <= pace.records
    assert all(key.startswith(f"{pace.prefix}:") for key in written)
    assert pace.clean() == len(written)
    assert keys(once) == mine
    assert pace.left == []


def test_two_runs_have_different_keys(once):
    assert paced(once)[0].prefix != paced(once)[0].prefix


def test_it_keeps_to_its_rate(once):
    pace, clock = paced(once, seconds=10.0, rate=8.0)
    began = clock()
    pace.run()
    assert clock() - began == pytest.approx(10.0, abs=1.5)  # a batch is ten keys
    began = clock()
    gone = pace.clean()
    assert clock() - began == pytest.approx(gone / 8 / 4, abs=1.5)


def test_an_error_is_counted_and_the_run_goes_on(once):
    pace, _ = paced(once)
    insert, calls = once.store.insert, []

    def failing(write):
        calls.append(write)
        if len(calls) == 3:
            raise StoreError("no permission")
        return (yield from insert(write))

    once.store.insert = failing
    timed = {one.name: one for one in pace.run()}
    assert pace.errors == {"no permission": 1}
    assert timed["claim"].times == 39
    pace.clean()
    assert all(key.startswith("mine:") for key in keys(once))


def test_a_record_that_cannot_be_deleted_is_named(once):
    pace, _ = paced(once)
    pace.run()
    delete, refused = once.store.delete, []

    def failing(seen):
        if not refused:
            refused.append(seen.key)
            raise StoreError("no permission")
        return delete(seen)

    once.store.delete = failing
    pace.clean()
    assert pace.left == refused


def test_more_requests_than_documented_are_said():
    told = verdicts([Timed("claim", 10, 2.0, (0.1,) * 4, 0.0)])
    assert told[0] == (
        False,
        "claim: 2.00 requests; the docs say 1. Retries, probe=read and a pooler add some",
    )


def test_time_outside_of_requests_is_judged():
    slow = verdicts([Timed("claim", 10, 1.0, (0.1,) * 4, 0.05)])
    assert [met for met, _ in slow] == [True, False]
