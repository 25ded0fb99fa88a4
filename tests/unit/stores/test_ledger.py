"""The ledger for people: what is there, and what may be done to it."""

import contextlib
import itertools

import pytest

import onceward
from onceward import Busy, Completed, LeaseLost, NotFound, Once, OncewardError, Parked
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing import Faults
from tables import each

pytestmark = pytest.mark.sampled(once=1)


@pytest.fixture(params=["memory", "sqlite"])
def once(request, clock, tmp_path):
    store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "ledger.db", clock=clock)
    made = Once(store, clock=clock)
    yield made
    made.close()


@pytest.fixture
def ledger(once):
    return once.ledger


@each("prefix", ["%", "_", "'", "\\", "a%", "\x00", "*"])
def test_a_prefix_is_taken_as_it_is(once, ledger, prefix):
    if not list(ledger.records()):
        once.acquire("k", name="a").complete()
    assert list(ledger.records(prefix)) == []


@pytest.mark.parametrize("key", ["claim:none", "\udcff", "a\x00b", "'; DROP TABLE onceward"])
def test_a_key_that_is_not_there_is_not_found(once, ledger, key):
    once.acquire("k")
    for ask in (ledger.show, ledger.clear, ledger.park, ledger.unpark, ledger.is_live):
        with pytest.raises(NotFound) as missing:
            ask(key)
        str(missing.value).encode()
    assert len(list(ledger.records())) == 1


@pytest.mark.parametrize("verb", ["clear", "park"])
def test_what_a_worker_holds_is_refused_unless_told_and_then_its_result_is(once, ledger, verb):
    claim = once.acquire("k")
    assert ledger.is_live("claim:k")
    with pytest.raises(Busy):
        getattr(ledger, verb)("claim:k")
    assert getattr(ledger, verb)("claim:k", live=True).key == "claim:k"
    with pytest.raises(LeaseLost):
        claim.complete("mine")
    if verb == "clear":
        once.acquire("k").complete("theirs")
    else:
        with pytest.raises(Parked):
            once.acquire("k")


def test_unpark_gives_all_attempts_back_and_keeps_the_error(once, ledger, clock):
    limited = once.using(max_attempts=1)
    with pytest.raises(ZeroDivisionError), limited.claim("k"):
        1 / 0
    with pytest.raises(Parked, match="division by zero"):
        limited.acquire("k")
    clock.advance(1e9)
    assert ledger.purge() == 0  # what is parked stays
    record = ledger.unpark("claim:k")
    assert (record.attempts, record.error) == (0, "ZeroDivisionError: division by zero")
    with limited.claim("k") as claim:
        assert claim.attempt == 1
    for verb, told in (("park", "COMPLETED"), ("unpark", "not parked")):
        with pytest.raises(OncewardError, match=told):
            getattr(ledger, verb)("claim:k")


def test_purge_deletes_all_that_is_expired_and_nothing_else(once, ledger, clock):
    for number in range(10):
        once.acquire(number, lease=1, retention=10).complete()
    once.acquire("kept", retention=None).complete()
    clock.advance(12)
    once.store._commits = 1  # between two purges that the writes make by themselves
    once.acquire("live")
    assert ledger.purge(3) == 10
    assert [record.key for record, _ in ledger.records()] == ["claim:kept", "claim:live"]


def test_stats_count_by_status(once, ledger, clock):
    once.acquire("lapsed", lease=1)
    once.acquire("expired", lease=1, retention=1).complete()
    clock.advance(5)
    once.acquire("live")
    once.acquire("done").complete()
    once.acquire("released").release()
    once.acquire("parked").park()
    states = {"IN_PROGRESS": 2, "COMPLETED": 2, "RELEASED": 1, "PARKED": 1}
    assert ledger.stats() == {"total": 6, **states, "lapsed": 1, "expired": 1}
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


@pytest.mark.parametrize("how", ["park", "release", "lapse"])
def test_settle_gives_duplicates_the_result(once, ledger, clock, how):
    claim = once.acquire("k", lease=10)
    clock.advance(11)
    if how != "lapse":
        getattr(claim, how)("why")
    record = ledger.settle("claim:k", {"receipt": 7}, retention=60)
    assert (record.status, record.worker, record.error) == ("COMPLETED", "by hand", None)
    assert record.expires_at - record.lease_until == pytest.approx(60)
    with pytest.raises(Completed) as done:
        once.acquire("k")
    assert done.value.result == {"receipt": 7}
    last = ledger.attempts("claim:k")[-1]
    assert (last.outcome, last.worker) == ("COMPLETED", "by hand")
    if how != "release":
        assert ledger.attempts("claim:k")[0].outcome in {"PARKED", "LAPSED"}


def test_settle_refuses_what_is_live_or_completed(once, ledger):
    once.acquire("live")
    with pytest.raises(Busy):
        ledger.settle("claim:live", 1)
    once.acquire("done").complete(2)
    with pytest.raises(OncewardError, match="it is COMPLETED and cannot be settled"):
        ledger.settle("claim:done", 1)
    assert ledger.show("claim:done")[0].result == "2"
    with pytest.raises(NotFound):
        ledger.settle("claim:none", 1)


def test_settle_changes_only_the_record_that_was_seen(once, ledger):
    once.acquire("k").park("why")
    key, (seen, _) = "claim:k", ledger.show("claim:k")
    ledger.unpark(key)
    once.acquire("k").park("another reason")
    with pytest.raises(OncewardError, match="it has changed since you looked at it"):
        ledger.settle(key, 1, seen=seen)
    assert ledger.show(key)[0].status == "PARKED"
    assert ledger.settle(key, 1, seen=ledger.show(key)[0]).status == "COMPLETED"


def test_a_zombie_does_not_take_a_settled_key_for_its_own(once, ledger, clock):
    zombie = once.acquire("k", lease=10)
    clock.advance(11)
    ledger.settle("claim:k", "by hand")
    with pytest.raises(LeaseLost):
        zombie.complete("mine")
    assert ledger.show("claim:k")[0].result == '"by hand"'


@pytest.mark.parametrize(("retention", "days"), [(3600, 14), (90 * 86400, 90), (None, None)])
def test_a_retried_key_stays_as_long_as_its_record_says_or_longer(once, ledger, clock, retention, days):
    """Without its record, a later delivery would make the steps again that it keeps."""

    @once(key="order", name="shop", retention=retention)
    def place(order: int) -> None:
        onceward.current().step("charge", int, 5)
        onceward.current().step("mail", int, 6)

    place(1)
    assert ledger.retry("shop:1", "mail").expires_at == (None if days is None else clock() + days * 86400)


def stopped(once, **policy):
    with pytest.raises(Parked) as error:
        once.using(**policy).acquire("k")
    return error.value


@pytest.mark.parametrize("history", [0, 1])
def test_a_key_that_a_lapse_has_parked_is_in_doubt(once, clock, history):
    once.using(history=history).acquire("k").release("it failed before")
    once.using(history=history, lease=10).acquire("k")
    clock.advance(11)
    for _ in range(2):
        told = stopped(once, history=history, on_lapse="park")
        assert told.in_doubt
        assert "its lease lapsed" in told.last_error
        assert "Ask the downstream whether its effect was made" in str(told)
        assert "onceward settle KEY" in str(told)


def test_a_key_that_failures_have_parked_is_not_in_doubt(once, clock):
    once.acquire("k", lease=10)
    clock.advance(11)
    once.acquire("k").release()
    told = stopped(once, max_attempts=2)
    assert not told.in_doubt
    assert "Fix its cause, then `onceward unpark KEY`" in str(told)


def test_a_step_that_must_not_run_twice_leaves_its_key_in_doubt(once):
    with pytest.raises(ZeroDivisionError), once.claim("k") as claim:
        claim.step("charge", lambda: 1 / 0, on_lapse="park")
    told = stopped(once)
    assert "whether its step charge was made. If not, `onceward retry KEY --from STEP`" in str(told)
    assert told.in_doubt


def test_a_ledger_of_many_pages_is_listed_completely(once, ledger, monkeypatch):
    monkeypatch.setattr("onceward.stores.ledger_reader.PAGE", 7)
    for number in range(50):
        once.acquire(number).complete()
    keys = [record.key for record, _ in ledger.records()]
    assert len(keys) == 50
    assert keys == sorted(set(keys))


def test_a_first_call_takes_two_a_duplicate_one_a_failed_one_two_and_its_retry_three(store):
    counted = Faults(store, lambda ask: None)
    once, totals = Once(counted, name="n"), [0]
    for key, function in (("k", int), ("k", int), ("other", lambda: 1 / 0), ("other", int)):
        with contextlib.suppress(ZeroDivisionError):
            once.run(key, function)
        totals.append(len(counted.asked))
    assert [after - before for before, after in itertools.pairwise(totals)] == [2, 1, 2, 3]
