"""Real processes: killed, paused, racing, forked, and with wrong clocks; and handlers longer than their lease."""

import asyncio
import collections
import contextlib
import random
import signal
import sqlite3
import threading
import time

import pytest

from onceward import Busy, Completed, Once
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before
from processes import PATIENCE, lines, workers


@pytest.fixture
def start():
    with workers("worker.py") as begin:
        yield begin


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger.db"


# --- killed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["once", "claim"])
def test_workers_killed_at_random_points_leave_exactly_one_effect_per_key(ledger, start, kind):
    with contextlib.closing(sqlite3.connect(ledger)) as connection:
        connection.execute("CREATE TABLE effects (key INTEGER, pid INTEGER)")
        connection.commit()
        chance = random.Random(3)
        running = [start("transact", ledger, kind, 200) for _ in range(3)]
        deaths = 0
        while connection.execute("SELECT count(*) FROM effects").fetchone()[0] < 200:
            time.sleep(0.1 + chance.random() * 0.3)
            victim = running.pop(chance.randrange(3))
            deaths += victim.poll() is None
            victim.kill()
            running.append(start("transact", ledger, kind, 200))
        for process in running:
            assert process.wait(PATIENCE) == 0
        effects = collections.Counter(key for (key,) in connection.execute("SELECT key FROM effects"))
    assert effects == dict.fromkeys(range(200), 1)
    records = [record for record, _ in Once(f"sqlite:///{ledger}").ledger.records()]
    assert [record.status for record in records] == [COMPLETED] * 200
    assert deaths >= 3
    if kind == "claim":
        assert any(record.attempts > 1 for record in records), "no worker was killed between its claim and its end"


# --- paused -------------------------------------------------------------------------------------------------------


def test_a_paused_worker_is_refused_and_told_and_its_successor_stands(ledger, start):
    process = start("zombie", ledger)
    assert process.stdout.readline().startswith("claimed")
    process.send_signal(signal.SIGSTOP)
    with Once(f"sqlite:///{ledger}").claim("key", on_busy=30.0) as claim:
        assert claim.attempt == 2
        claim.complete("heir")
    before = Once(f"sqlite:///{ledger}").ledger.show(claim.record.key)[0]
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate("\n", timeout=PATIENCE)
    assert output.splitlines() == ["lost", "LeaseLost"]
    assert Once(f"sqlite:///{ledger}").ledger.show(claim.record.key)[0] == before
    assert before.result == '"heir"'


def test_worker_paused_past_its_lease_whose_key_nobody_took_completes_it(ledger, start):
    process = start("zombie", ledger)
    assert process.stdout.readline().startswith("claimed")
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate("\n", timeout=PATIENCE)
    assert output.splitlines()[-1] == "completed"


# --- racing -------------------------------------------------------------------------------------------------------


def test_eight_processes_on_the_same_keys_run_every_handler_exactly_once(ledger, start, tmp_path):
    log = tmp_path / "log"
    racers = [start("race", ledger, log, 200) for _ in range(8)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        assert lines(racer) == ["done"]
        assert racer.returncode == 0
    runs = collections.Counter(map(int, log.read_text().splitlines()))
    assert runs == dict.fromkeys(range(200), 1)


# --- wrong clocks -------------------------------------------------------------------------------------------------


def check_skewed(ledger, start, seconds, **how):
    once = Once(f"sqlite:///{ledger}", lease=600.0, retention=600.0)
    once.acquire("live")
    once.acquire("done").complete("result")
    worker = start("skewed", ledger, **how)
    said = []
    for line in iter(worker.stdout.readline, ""):
        said.append(line.split())
        if line == "long\n":
            time.sleep(3.5)  # its lease of three seconds is over, were it not renewed
            with pytest.raises(Busy):
                once.acquire("long")
            worker.stdin.write("\n")
            worker.stdin.flush()
    name, shown = said.pop(0)
    assert name == "time"
    assert float(shown) - time.time() == pytest.approx(seconds, abs=60.0)
    assert said[:2] == [["busy"], ["replayed", "result"]]
    assert said[2][0] == "waited"
    assert 0.9 <= float(said[2][1]) < 15.0
    assert said[3:] == [["long"], ["held"], ["completed"]]
    assert worker.wait(PATIENCE) == 0
    assert once.ledger.stats()[IN_PROGRESS] == 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_whose_clock_is_an_hour_off_neither_steals_nor_forgets(ledger, start, faketime, hours):
    # Only the time of day is wrong on such a machine; how its kernel counts seconds is not.
    prefix = faketime(f"{hours:+d}h")
    check_skewed(ledger, start, 3600.0 * hours, prefix=prefix)


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns", "UTC"])
def test_a_worker_in_another_time_zone_neither_steals_nor_forgets(ledger, start, zone):
    check_skewed(ledger, start, 0.0, env={"TZ": zone})


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_with_a_wrong_clock_that_comes_first_does_no_harm(ledger, start, faketime, hours):
    """It sets the ledger's clock, for good; what counts is that all share it."""
    first = start("race", ledger, ledger.with_suffix(".log"), 1, prefix=faketime(f"{hours:+d}h"))
    first.communicate("go\n", timeout=PATIENCE)
    check_skewed(ledger, start, 0.0)


# --- forks --------------------------------------------------------------------------------------------------------


def test_a_once_that_was_used_before_a_fork_works_in_parent_and_children(ledger, start, tmp_path):
    log = tmp_path / "log"
    # CPython 3.12 warns of a fork beside threads, which is what this test is about
    process = start("prefork", ledger, log, env={"PYTHONWARNINGS": "error,ignore::DeprecationWarning"})
    assert lines(process) == ["done"]
    assert process.returncode == 0
    runs = collections.Counter(log.read_text().splitlines())
    assert set(runs.values()) == {1}
    assert len(runs) == 50 + 1 + 4


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_multiprocessing_pool_shares_the_work(ledger, start, tmp_path, method):
    log = tmp_path / "log"
    process = start("pool", ledger, log, method, env={"PYTHONWARNINGS": "error,ignore::DeprecationWarning"})
    assert lines(process) == ["done"]
    assert collections.Counter(map(int, log.read_text().split())) == dict.fromkeys(range(40), 1)


# --- handlers that take longer than their lease -------------------------------------------------------------------


def holds_on(ledger, run):
    """Run a long handler in a thread; meanwhile nobody else gets its key."""
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(run()))
    thread.start()
    rival = Once(f"sqlite:///{ledger}")
    time.sleep(0.3)
    while thread.is_alive():
        with contextlib.suppress(Completed), pytest.raises(Busy):
            rival.acquire("key")
        time.sleep(0.1)
    thread.join()
    assert outcome == [False]
    with pytest.raises(Completed):
        rival.acquire("key")
    assert rival.ledger.stats()["total"] == 1


def test_an_async_handler_that_blocks_its_loop_keeps_its_claim(ledger):
    async def handle():
        async with Once(f"sqlite:///{ledger}", lease=0.9).claim("key") as claim:
            time.sleep(3.0)
            return claim.lost

    holds_on(ledger, lambda: asyncio.run(handle()))


def test_a_sync_handler_that_outlives_its_lease_keeps_its_claim(ledger):
    def handle():
        with Once(f"sqlite:///{ledger}", lease=0.9).claim("key") as claim:
            time.sleep(3.0)
            return claim.lost

    holds_on(ledger, handle)


def test_without_heartbeats_a_long_handler_loses_its_claim(ledger):
    with Once(f"sqlite:///{ledger}", lease=0.3, heartbeat=0).claim("key") as claim:
        time.sleep(0.4)
        assert claim.lost


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda fault: fault.kind.name)
def test_heartbeats_go_on_when_the_store_was_away_for_a_while(fault):
    away = threading.Event()
    store = Faults(MemoryStore(), lambda ask: fault if away.is_set() else None)
    with Once(store, lease=2.0).claim("key") as claim:
        away.set()
        time.sleep(1.3)  # the first beat is due after 0.67 s
        assert not claim.lost
        away.clear()
        time.sleep(1.5)
        assert not claim.lost
    assert claim.record.status == COMPLETED


def test_when_the_store_stays_away_handler_sees_that_its_lease_is_over():
    away = threading.Event()
    store = Faults(MemoryStore(), lambda ask: fail_before() if away.is_set() else None)
    claim = Once(store).claim("key", lease=0.6)
    with claim as held:
        away.set()
        time.sleep(0.8)
        assert held.lost
        assert 2 < sum(ask.verb == "swap_many" for ask in store.asked) < 60
        away.clear()
