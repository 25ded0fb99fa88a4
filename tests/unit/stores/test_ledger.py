"""The ledger for people: what is there, and what may be done to it."""

import time

import pytest

from onceward import Busy, Completed, LeaseLost, NotFound, Once, OncewardError, Parked
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.store import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def once(request, clock, tmp_path):
    store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "ledger.db", clock=clock)
    made = Once(store, clock=clock)
    yield made
    made.close()


@pytest.fixture
def ledger(once):
    return once.ledger


def parked(once, key):
    once.acquire(key).park("why")
    return f"claim:{key}"


def test_records_are_listed_in_the_order_of_their_keys(once, ledger):
    for name in ("b", "a", "c"):
        once.acquire("k", name=name).complete()
    assert [record.key for record, _ in ledger.records()] == ["a:k", "b:k", "c:k"]


def test_records_are_listed_by_prefix_and_status(once, ledger):
    once.acquire("1", name="a").complete()
    once.acquire("2", name="a")
    once.acquire("3", name="ab").complete()
    assert [record.key for record, _ in ledger.records("a:")] == ['a:"1"', 'a:"2"']
    assert [record.key for record, _ in ledger.records(status="COMPLETED")] == ['a:"1"', 'ab:"3"']
    assert list(ledger.records("nothing")) == []


@pytest.mark.parametrize("prefix", ["%", "_", "'", '"', "\\", "a%", "ü", "\x00", "\U0010ffff", "*", "["])
def test_a_prefix_is_taken_as_it_is(once, ledger, prefix):
    once.acquire("k", name="a").complete()
    assert list(ledger.records(prefix)) == []


def test_a_ledger_of_many_pages_is_listed_completely(once, ledger, monkeypatch):
    monkeypatch.setattr("onceward.stores.ledger.PAGE", 7)
    for number in range(50):
        once.acquire(number).complete()
    keys = [record.key for record, _ in ledger.records()]
    assert len(keys) == 50
    assert keys == sorted(set(keys))


def test_an_empty_ledger_is_empty(ledger):
    assert list(ledger.records()) == []
    assert ledger.stats()["total"] == 0
    assert ledger.purge() == 0


def test_show_returns_one_record_and_the_time(once, ledger, clock):
    once.acquire("k").complete(5)
    record, now = ledger.show("claim:k")
    assert (record.result, now) == ("5", clock())


@pytest.mark.parametrize("key", ["claim:none", "", "\udcff", "x" * 100_000, "a\x00b", "'; DROP TABLE onceward"])
def test_a_key_that_is_not_there_is_not_found(once, ledger, key):
    once.acquire("k")
    for ask in (ledger.show, ledger.clear, ledger.park, ledger.unpark, ledger.is_live):
        with pytest.raises(NotFound) as missing:
            ask(key)
        str(missing.value).encode()
    assert len(list(ledger.records())) == 1


def test_is_live_tells_whether_a_worker_holds_it(once, ledger, clock):
    claim = once.acquire("k", lease=10)
    assert ledger.is_live("claim:k")
    clock.advance(11)
    assert not ledger.is_live("claim:k")
    claim.complete()
    assert not ledger.is_live("claim:k")


def test_clear_lets_the_next_delivery_run_again(once, ledger):
    once.acquire("k").complete(1)
    assert ledger.clear("claim:k").result == "1"
    assert once.acquire("k").attempt == 1


def test_clear_refuses_a_live_claim_unless_told(once, ledger):
    claim = once.acquire("k")
    with pytest.raises(Busy):
        ledger.clear("claim:k")
    assert ledger.clear("claim:k", live=True).key == "claim:k"
    once.acquire("k").complete("theirs")
    with pytest.raises(LeaseLost):
        claim.complete("mine")


def test_clear_needs_no_leave_for_a_lapsed_claim(once, ledger, clock):
    once.acquire("k", lease=10)
    clock.advance(11)
    ledger.clear("claim:k")


def test_the_fence_grows_across_a_clear(once, ledger, clock):
    first = once.acquire("k")
    first.complete()
    clock.advance(0.001)
    ledger.clear("claim:k")
    assert once.acquire("k").fence > first.fence


def test_park_stops_a_key_until_unpark(once, ledger):
    once.acquire("k").release("failed")
    assert ledger.park("claim:k", "the bank is closed").error == "the bank is closed"
    with pytest.raises(Parked, match="the bank is closed"):
        once.acquire("k")
    assert ledger.unpark("claim:k").status == "RELEASED"
    assert once.acquire("k").attempt == 1


def test_park_refuses_what_is_live_completed_or_parked(once, ledger):
    once.acquire("live")
    with pytest.raises(Busy):
        ledger.park("claim:live")
    once.acquire("done").complete()
    with pytest.raises(OncewardError, match="COMPLETED"):
        ledger.park("claim:done")
    with pytest.raises(OncewardError, match="PARKED"):
        ledger.park(parked(once, "parked"))


def test_park_of_a_live_claim_refuses_its_workers_result(once, ledger):
    claim = once.acquire("k")
    ledger.park("claim:k", live=True)
    with pytest.raises(LeaseLost):
        claim.complete()
    with pytest.raises(Parked):
        once.acquire("k")


def test_unpark_gives_all_attempts_back_and_keeps_the_error(once, ledger):
    limited = once.using(max_attempts=1)
    with pytest.raises(ZeroDivisionError), limited.claim("k"):
        1 / 0
    record = ledger.unpark("claim:k")
    assert (record.attempts, record.error) == (0, "ZeroDivisionError: division by zero")
    with limited.claim("k") as claim:
        assert claim.attempt == 1


def test_unpark_refuses_what_is_not_parked(once, ledger):
    once.acquire("k").complete()
    with pytest.raises(OncewardError, match="not parked"):
        ledger.unpark("claim:k")
    with pytest.raises(Completed):
        once.acquire("k")


def test_a_parked_record_is_not_purged(once, ledger, clock):
    parked(once, "k")
    clock.advance(1e9)
    assert ledger.purge() == 0
    assert len(list(ledger.records())) == 1


@pytest.mark.parametrize("batch", [1, 3, 500])
def test_purge_deletes_all_that_is_expired_and_nothing_else(once, ledger, clock, batch):
    for number in range(10):
        once.acquire(number, lease=1, retention=10).complete()
    once.acquire("kept", retention=None).complete()
    clock.advance(12)
    once.store._commits = 1  # between two purges that the writes make by themselves
    once.acquire("live")
    assert ledger.purge(batch) == 10
    assert [record.key for record, _ in ledger.records()] == ["claim:kept", "claim:live"]


def test_stats_count_by_status(once, ledger, clock):
    once.acquire("lapsed", lease=1)
    once.acquire("expired", lease=1, retention=1).complete()
    clock.advance(5)
    once.acquire("live")
    once.acquire("done").complete()
    once.acquire("released").release()
    parked(once, "parked")
    stats = ledger.stats()
    assert stats == {
        "total": 6,
        "IN_PROGRESS": 2,
        "COMPLETED": 2,
        "RELEASED": 1,
        "PARKED": 1,
        "lapsed": 1,
        "expired": 1,
    }
    assert ledger.stats("claim:li")["total"] == 1


def test_a_change_that_somebody_else_makes_meanwhile_is_seen(once, ledger, monkeypatch):
    """The record changes between the look and the write: the write is refused and the look is repeated."""
    claim = once.acquire("k", lease=1000)
    real = ledger.show
    calls = []

    def show(key):
        seen = real(key)
        if not calls:
            calls.append(1)
            claim.complete("just now")
        return seen

    monkeypatch.setattr(ledger, "show", show)
    with pytest.raises(OncewardError, match="COMPLETED"):
        ledger.park("claim:k", live=True)


def test_a_ledger_in_a_sqlite_file_is_looked_at_from_outside(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")
    once.acquire("k").complete()
    other = Once(f"sqlite:///{tmp_path}/ledger.db").ledger
    record, now = other.show("claim:k")
    assert abs(record.created_at - now) < 10
    assert abs(now - time.time()) < 10
    once.close()
