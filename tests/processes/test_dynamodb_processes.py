"""Real processes on a real server: killed, paused, racing, forked, with wrong clocks, and with a server that is killed."""

import calendar
import collections
import random
import signal
import time

import pytest

from onceward import Busy, Once
from onceward.core.record import COMPLETED, IN_PROGRESS
from processes import PATIENCE, lines, workers
from servers import Dynoxide
from workers.dynamodb_worker import adding


@pytest.fixture
def start():
    with workers("dynamodb_worker.py") as begin:
        yield begin


@pytest.fixture
def direct(dynoxide, aws, table):
    """The URL of a fresh ledger, with nothing in between."""
    return f"dynamodb://{table}?endpoint={dynoxide.url}"


@pytest.fixture
def money(dynoxide, table):
    """A table for business writes."""
    return dynoxide.table(f"money-of-{table}", {"id": "S"})


def spent(server, money) -> dict[str, int]:
    return {item["id"]["S"]: int(item["n"]["N"]) for item in server.items(money)}


# --- killed -------------------------------------------------------------------------------------------------------


def test_workers_killed_at_random_points_leave_exactly_one_effect_per_key(direct, dynoxide, money, start):
    chance = random.Random(3)
    abandoned = []
    while not abandoned:
        running = [start("transact", direct, money, 100) for _ in range(3)]
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            time.sleep(0.1 + chance.random() * 0.3)
            running.pop(chance.randrange(3)).kill()
            running.append(start("transact", direct, money, 100))
            assert running[-1].stdout.readline() == "ready\n"
        for process in running:
            process.kill()
        assert all(process.wait() == -signal.SIGKILL for process in running), "there was not enough to do"
        abandoned = [r for r, _ in Once(direct).ledger.records(status=IN_PROGRESS)]
    for process in [start("transact", direct, money, 100) for _ in range(3)]:
        assert process.wait(PATIENCE) == 0
    assert spent(dynoxide, money) == {f"{kind}{n}": 1 for kind in ("once", "claim") for n in range(100)}
    records = {record.key: record for record, _ in Once(direct).ledger.records()}
    assert [record.status for record in records.values()] == [COMPLETED] * 200
    assert all(records[record.key].attempts == record.attempts + 1 for record in abandoned)


# --- paused -------------------------------------------------------------------------------------------------------


def test_a_paused_worker_is_refused_and_told_and_its_successor_stands(direct, dynoxide, money, start):
    zombie, patient = start("zombie", direct, money), start("patient", direct)
    for process in (zombie, patient):
        assert process.stdout.readline() == "claimed\n"
        process.send_signal(signal.SIGSTOP)
    once = Once(direct)
    with once.claim("taken", on_busy=30.0) as claim:
        assert claim.attempt == 2
        claim.complete("heir")
    with once.claim("spent", on_busy=30.0) as claim:
        assert claim.attempt == 2
        claim.transact([adding(money, "spent")], "heir")
    before = {record.key: record for record, _ in once.ledger.records()}
    for process in (zombie, patient):
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
    assert lines(zombie) == ["lost refused refused refused refused refused LeaseLost"]
    assert lines(patient) == ["completed"], "nobody took its key, so the work that it did is recorded"
    after = {record.key: record for record, _ in once.ledger.records()}
    assert before["claim:left"].status == IN_PROGRESS
    assert after.pop("claim:left").result == '"late"'
    assert after == {key: record for key, record in before.items() if key != "claim:left"}
    assert {record.result for record in after.values()} == {'"heir"'}
    assert spent(dynoxide, money) == {"spent": 1}


# --- racing -------------------------------------------------------------------------------------------------------


def test_eight_processes_on_the_same_keys_run_every_handler_exactly_once(direct, start, tmp_path):
    log = tmp_path / "log"
    racers = [start("race", direct, log, 100) for _ in range(8)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        assert lines(racer) == ["done"]
        assert racer.returncode == 0
    runs = collections.Counter(map(int, log.read_text().splitlines()))
    assert runs == dict.fromkeys(range(100), 1)


# --- forks --------------------------------------------------------------------------------------------------------


def test_a_once_that_was_used_before_a_fork_works_in_parent_and_children(direct, start, tmp_path):
    log = tmp_path / "log"
    # CPython 3.12 warns of a fork beside threads, which is what this test is about
    process = start("prefork", direct, log, env={"PYTHONWARNINGS": "error,ignore::DeprecationWarning"})
    assert lines(process) == ["done"]
    assert process.returncode == 0
    runs = collections.Counter(log.read_text().splitlines())
    assert set(runs.values()) == {1}
    assert len(runs) == 50 + 1 + 1 + 4


# --- a server that is killed --------------------------------------------------------------------------------------


def test_a_server_killed_and_started_again_loses_and_doubles_nothing(aws, start, tmp_path):
    log = tmp_path / "log"
    log.touch()
    server = Dynoxide(tmp_path / "db")
    try:
        ledger, money = server.table("ledger"), server.table("money", {"id": "S"})
        url = f"dynamodb://{ledger}?endpoint={server.url}"
        running = [start("survive", url, money, log, 100) for _ in range(3)]
        for runs in (15, 40, 70):
            deadline = time.monotonic() + PATIENCE
            while log.read_text().count("\n") < runs:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            server.stop()
            time.sleep(0.1)
            server.start()
        for process in running:
            assert lines(process) == ["done"]
            assert process.returncode == 0
        runs = collections.Counter(map(int, log.read_text().splitlines()))
        assert runs == dict.fromkeys(range(100), 1)
        assert spent(server, money) == {str(n): 1 for n in range(100)}
        records = [record for record, _ in Once(url).ledger.records()]
        assert {(record.status, record.attempts) for record in records} == {(COMPLETED, 1)}
        assert len(records) == 200
    finally:
        server.stop()


# --- wrong clocks -------------------------------------------------------------------------------------------------

CHANGES = {  # the moments at which clocks are changed in Berlin, in UTC
    "spring": calendar.timegm((2026, 3, 29, 1, 0, 0)),
    "autumn": calendar.timegm((2026, 10, 25, 1, 0, 0)),
}
BEFORE = 5.0  # seconds that a worker has to look at its clock before the change


def test_workers_whose_clocks_are_wrong_neither_steal_nor_forget(url, proxy, start, faketime):
    """An hour fast, an hour slow, through both changes of the clocks, and in an odd zone: all at the same time."""
    proxy.tolerance = 300
    once = Once(url, lease=60.0, retention=60.0)
    once.acquire("live")
    once.acquire("done").complete("result")
    begun = time.monotonic()
    wrong = {name: (at - BEFORE - time.time(), "Europe/Berlin") for name, at in CHANGES.items()}
    wrong |= {"fast": (3600.0, "UTC"), "slow": (-3600.0, "UTC"), "right": (0.0, "Asia/Kathmandu")}
    running = {}
    for name, (seconds, zone) in wrong.items():
        prefix = faketime(f"{seconds:+.0f}")
        running[name] = start("skewed", url, name, prefix=prefix, env={"TZ": zone})
    for worker in running.values():
        assert worker.stdout.readline() == "long\n"
    # Their leases of three seconds are over, were they not renewed, and the clocks are changed.
    time.sleep(max(3.5, begun + BEFORE + 0.5 - time.monotonic()))
    for name in running:
        with pytest.raises(Busy):
            once.acquire(("long", name))
    for name, worker in running.items():
        output, _ = worker.communicate("\n", timeout=PATIENCE)
        said = dict(line.split(maxsplit=1) for line in output.splitlines())
        assert float(said.pop("time")) - time.time() == pytest.approx(wrong[name][0], abs=60.0)
        assert 0.9 <= float(said.pop("waited")) < 15.0
        summers = said.pop("summers")
        assert summers == {"spring": "0 1", "autumn": "1 0"}.get(name, "0 0")
        assert said == {"live": "busy", "done": "replayed result", "own": "held", "lost": "False"}
        assert worker.wait(PATIENCE) == 0
    stamps = [record.created_at for record, _ in once.ledger.records()]
    assert len(stamps) == 2 + 2 * len(running)
    assert all(abs(stamp - time.time()) < 60 for stamp in stamps), "a record was stamped by a worker's own clock"
    # Those that are an hour off, or months, had one request refused each, and signed it again.
    refused = [seen for seen in proxy.seen if proxy.skewed(seen.headers["x-amz-date"])]
    assert len(refused) == 4
