"""The ledger for people: what is there, what may be done to it, and where its downstream does not agree, also as the pages print it."""

import contextlib
import itertools
import re
import subprocess
import sys
import uuid

import pytest

import onceward
from faults.injected import Faults
from onceward import Busy, Completed, LeaseLost, NotFound, Once, OncewardError, Parked
from onceward.cli.records import details
from onceward.cli.scans import effects_of
from onceward.stores.memory import MemoryStore
from onceward.stores.reconciling import Naming, mismatches
from onceward.stores.sqlite.store import SqliteStore
from printed.pages import section
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


@pytest.mark.parametrize("retention", [3600, None])
def test_a_settled_key_that_waited_for_a_person_stays_as_long_as_its_guard_says(once, ledger, clock, retention):
    once.acquire("k", lease=10, on_lapse="park", retention=retention).extend(20)
    clock.advance(1e9)
    assert "expires        never" in details(*ledger.show("claim:k"))
    record = ledger.settle("claim:k", 7)
    assert record.expires_at == (None if retention is None else clock() + retention)


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


def test_a_key_that_a_lapse_has_parked_is_in_doubt(once, clock):
    once.acquire("k").release("it failed before")
    once.using(lease=10).acquire("k")
    clock.advance(11)
    for _ in range(2):
        told = stopped(once, on_lapse="park")
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


def complete(once, *keys):
    for key in keys:
        once.acquire(key, name="n").complete(None)


def found(once, effects, name="n", **options):
    told = mismatches(once.ledger, effects, Naming(name), **{"settle": 0.0, **options})
    return sorted((one.what, one.key, one.times, one.status) for one in told)


def test_what_agrees_is_not_told(once):
    complete(once, "a", "b", 3, ("c", 4), uuid.UUID(int=5), "with space", "x" * 500, 42, "43")
    once.acquire("running", name="n")
    effects = ["a", "b", 3, ("c", 4), uuid.UUID(int=5), "with space", "x" * 500, "42", 43, "running"]
    assert found(once, effects) == []


def test_each_difference_is_told(once):
    complete(once, "ok", "never made", "twice")
    once.acquire("parked", name="n").park("no")
    effects = ["ok", "nobody", "twice", "twice", "parked"]
    assert found(once, effects) == [
        ("double", "n:twice", 2, "COMPLETED"),
        ("effect without a record", "n:nobody", 1, None),
        ("effect without a record", "n:parked", 1, "PARKED"),
        ("record without an effect", 'n:"never made"', 0, "COMPLETED"),
    ]


def test_a_large_result_of_a_step_is_no_key_of_the_downstream(once):
    claim = once.acquire("a", name="n")
    claim.step("large", lambda: "x" * 30_000)
    claim.complete(None)
    complete(once, "step-a")
    assert len(list(once.ledger.records())) == 3
    assert found(once, ["a"]) == [("record without an effect", "n:step-a", 0, "COMPLETED")]


def test_records_of_onceward_itself_and_of_exceptions_are_no_missing_effects(once):
    complete(once, "a")
    once.acquire("n:a:1", name="onceward.audit").complete("cleared")
    with pytest.raises(KeyError):
        once.using(name="n", final=(KeyError,)).run("b", {}.__getitem__, "x")
    assert found(once, ["n:a"], name=None) == []


def test_derived_keys_are_compared(once):
    keys = []
    for number in range(3):
        claim = once.acquire(number, name="n")
        keys.append(claim.key("charge"))
        claim.complete(None)
    told = mismatches(once.ledger, [*keys[:2], keys[0], "another"], Naming("n", "charge"), settle=0.0)
    assert sorted((one.what, one.key) for one in told) == [
        ("double", keys[0]),
        ("effect without a record", "another"),
        ("record without an effect", "n:2"),
    ]


def test_records_that_are_too_old_or_too_new_are_not_missed(once, clock):
    complete(once, "old")
    clock.advance(1000.0)
    complete(once, "new")
    assert found(once, ["old"], newer_than=500.0) == [("record without an effect", "n:new", 0, "COMPLETED")]
    assert found(once, ["old"], newer_than=500.0, settle=300.0) == []
    with pytest.raises(ValueError, match="newer_than: an effect with a derived key"):
        next(mismatches(once.ledger, [], Naming("n", "charge"), newer_than=500.0))


def test_a_csv_file_is_read(tmp_path):
    path = tmp_path / "effects.csv"
    path.write_text("\ufeffkey,amount\na,1\n\nb,2\n", encoding="utf-8")
    assert list(effects_of(str(path))) == ["a", "b"]
    path.write_text("order,amount\na,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column 'key', only order, amount"):
        list(effects_of(str(path)))


@pytest.mark.slow
@each(
    ("page", "title"),
    [("how-to/runbook.md", "Compare the ledger with the downstream"), ("reference/records.md", "The last attempts")],
)
def test_the_page_prints_what_it_says(page, title, tmp_path):
    text = section(f"docs/{page}", title)
    found = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", text, re.DOTALL)
    assert found
    for number, (code, printed) in enumerate(found):
        script = tmp_path / f"block{number}.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.returncode) == (printed, 0), done.stderr
