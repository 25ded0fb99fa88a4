"""Real processes on a ledger of every store: killed, paused, forked, with wrong clocks, and with a killed server."""

import collections
import random
import signal
import time

import pytest

from faults.processes import PATIENCE, lines, workers
from onceward import Busy, Once
from onceward.core.record import COMPLETED, IN_PROGRESS
from stores.ledgers import SERVED, DynamoLedger
from waiting import until


@pytest.fixture
def start():
    with workers("worker.py") as begin:
        yield begin


@pytest.mark.sampled("postgresql")
def test_workers_killed_at_random_points_leave_exactly_one_effect_per_key(ledger, start):
    chance = random.Random(3)
    abandoned = []
    for count in (50, 200, 400, 800, 1600):  # on a slow machine a kill can meet no claim
        running = [start("transact", ledger.url, count) for _ in range(2)]
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            time.sleep(0.05 + chance.random() * 0.1)
            running.pop(chance.randrange(2)).kill()
            running.append(start("transact", ledger.url, count))
            assert running[-1].stdout.readline() == "ready\n"
        for process in running:
            process.kill()
        for process in running:
            process.wait()
        abandoned = [r for r, _ in Once(ledger.url).ledger.records(status=IN_PROGRESS)]
        if abandoned:
            break
    assert abandoned, "there was not enough to do"
    for process in [start("transact", ledger.url, count) for _ in range(2)]:
        assert process.wait(PATIENCE) == 0
    assert ledger.spent() == {f"{kind}{n}": 1 for kind in ("once", "claim") for n in range(count)}
    records = {record.key: record for record, _ in Once(ledger.url).ledger.records()}
    assert [record.status for record in records.values()] == [COMPLETED] * 2 * count
    assert all(records[record.key].attempts == record.attempts + 1 for record in abandoned)


@pytest.mark.sampled("postgresql")
def test_a_paused_worker_is_refused_and_told_and_its_successor_stands(ledger, start):
    zombie, patient = start("zombie", ledger.url), start("patient", ledger.url)
    for process in (zombie, patient):
        assert process.stdout.readline() == "claimed\n"
        process.send_signal(signal.SIGSTOP)
    once = Once(ledger.url)
    with once.claim("taken", on_busy=30.0) as claim:
        assert claim.attempt == 2
        claim.complete("heir")
    with once.claim("spent", on_busy=30.0) as claim:
        assert claim.attempt == 2
        ledger.spend(claim, "spent", "heir")
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
    assert ledger.spent() == {"spent": 1}


# CPython 3.12 warns of a fork beside threads, which is what these tests are about
FORKING = {"PYTHONWARNINGS": "error,ignore::DeprecationWarning"}


@pytest.mark.sampled("postgresql", "sqlite")
def test_a_once_that_was_used_before_a_fork_works_in_parent_and_children(ledger, start, tmp_path):
    log = tmp_path / "log"
    process = start("prefork", ledger.url, log, env=FORKING)
    assert lines(process) == ["done"]
    assert process.returncode == 0
    runs = collections.Counter(log.read_text().splitlines())
    assert set(runs.values()) == {1}
    assert len(runs) == 50 + 1 + 1 + 4


@pytest.mark.sampled("dynamodb")
@pytest.mark.parametrize("store", SERVED)
def test_a_server_killed_and_started_again_loses_and_doubles_nothing(request, start, tmp_path, store):
    log = tmp_path / "log"
    log.touch()
    with SERVED[store].own_server(request, tmp_path) as (ledger, server):
        running = [start("survive", ledger.url, log, 100) for _ in range(3)]
        for runs in (15, 40, 70):
            until(lambda runs=runs: log.read_text().count("\n") >= runs)
            server.stop()
            time.sleep(0.1)
            server.start()
        for process in running:
            assert lines(process) == ["done"]
            assert process.returncode == 0
        runs = collections.Counter(map(int, log.read_text().splitlines()))
        assert runs == dict.fromkeys(range(100), 1)
        assert ledger.spent() == {str(n): 1 for n in range(100)}
        records = [record for record, _ in Once(ledger.url).ledger.records()]
        assert [record.status for record in records] == [COMPLETED] * 200
        if not ledger.away:
            assert {record.attempts for record in records} == {1}
        # Else bodies fail with their connection, and claims whose replies were lost wait for the end of their lease.


@pytest.fixture
def refused(ledger, request):
    """Give a function that counts the requests refused for the time they were signed at, which AWS checks."""
    if not isinstance(ledger, DynamoLedger):
        return None
    proxy = request.getfixturevalue("proxy")
    proxy.tolerance = 300
    ledger.url = f"{ledger.url.partition('=')[0]}={proxy.url}"
    return lambda: sum(bool(proxy.skewed(seen.headers["x-amz-date"])) for seen in proxy.seen)


@pytest.mark.sampled("dynamodb")
def test_workers_whose_clocks_are_wrong_neither_steal_nor_forget(ledger, refused, start, faketime):
    once = Once(ledger.url, lease=120.0, retention=120.0)
    once.acquire("live")
    once.acquire("done").complete("result")
    off = {"fast": 3600.0, "slow": -3600.0, "east": 0.0, "west": 0.0}
    zones = {"fast": "UTC", "slow": "UTC", "east": "Asia/Kathmandu", "west": "America/St_Johns"}
    running = {}
    for name, zone in zones.items():
        running[name] = start("skewed", ledger.url, name, prefix=faketime(f"{off[name]:+.0f}"), env={"TZ": zone})
    for worker in running.values():
        assert worker.stdout.readline().endswith("summer\n")
        worker.stdin.write("\n")
        worker.stdin.flush()
    for worker in running.values():
        assert worker.stdout.readline() == "long\n"
    time.sleep(6.5)  # their leases of six seconds are over, were they not renewed
    for name in running:
        with pytest.raises(Busy):
            once.acquire(("long", name))
    for name, worker in running.items():
        output, _ = worker.communicate("\n", timeout=PATIENCE)
        said = dict(line.split(maxsplit=1) for line in output.splitlines())
        assert float(said.pop("time")) - time.time() == pytest.approx(off[name], abs=120.0)
        assert float(said.pop("waited")) >= 0.9
        assert said.items() >= {"live": "busy", "done": "replayed result", "own": "held", "lost": "False"}.items()
        assert worker.wait(PATIENCE) == 0
    stamps = [record.created_at for record, _ in once.ledger.records()]
    assert len(stamps) == 2 + 2 * len(running)
    assert all(abs(stamp - time.time()) < 60 for stamp in stamps), "a record was stamped by a worker's own clock"
    if refused:
        assert refused() == 2, "those that are an hour off had one request refused each, and signed it again"
