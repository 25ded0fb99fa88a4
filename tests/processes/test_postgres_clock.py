"""A PostgreSQL server whose clock is stepped while it is used."""

import collections
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from faults.processes import PATIENCE, lines, workers
from onceward import Busy, Completed, LeaseLost, Once
from servers.postgres import Postgres
from servers.wrong_clocks import wrong_clock

COUNT, LEASE = 300, 60.0
HOUR = 3600.0


class Stepped:
    """A server and its clock, which is as far off as a file says."""

    def __init__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-clock-"))
        self._folder.chmod(0o755)  # the server is another user's
        self._off = 0.0
        self._write()
        environment = wrong_clock("+0") | {
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / "off"),
            "FAKETIME_NO_CACHE": "1",
        }
        del environment["FAKETIME"]
        self._server = Postgres(environment)
        self.url = self._server.url

    def _write(self):
        (self._folder / "new").write_text(f"{self._off:+.0f}")
        (self._folder / "new").replace(self._folder / "off")

    def step(self, seconds):
        self._off += seconds
        self._write()
        asked = time.time()
        ((shown,),) = self._server.sql("SELECT date_part('epoch', clock_timestamp())")
        assert asked - 0.5 < shown - self._off < time.time() + 0.5

    def stop(self):
        self._server.stop()
        shutil.rmtree(self._folder)


@pytest.fixture
def stepped(faketime):
    made = Stepped()
    yield made
    made.stop()


@pytest.fixture
def once(stepped):
    made = Once(stepped.url, lease=LEASE, heartbeat=0)
    yield made
    made.close()


def noted(log, what):
    return [key for kind, key, _ in map(str.split, log.read_text().splitlines()) if kind == what]


def wait_for(log, number):
    end = time.monotonic() + PATIENCE
    while len(noted(log, "told")) < number:
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.nightly
def test_steps_under_load_double_no_key_but_those_in_progress_at_the_hour(stepped, tmp_path):
    log = tmp_path / "log"
    log.touch()
    with workers("failover.py") as start:
        running = [start(stepped.url, log, COUNT, LEASE) for _ in range(8)]
        for number, seconds in enumerate((-5.0, 5.0, 5.0, -HOUR)):
            wait_for(log, 30 * (number + 1))
            stepped.step(seconds)
        wait_for(log, 150)
        told = noted(log, "told")
        stepped.step(HOUR)
        in_progress = set(noted(log, "effect")) - set(told)
        for process in running:
            assert lines(process) == ["done"]
    runs = collections.Counter(noted(log, "effect"))
    assert len(runs) == COUNT
    assert {key for key, times in runs.items() if times > 1} <= in_progress


@pytest.mark.sampled("-3600.0")
@pytest.mark.parametrize("back", [-5.0, -HOUR])
def test_a_clock_that_steps_back_ends_no_lease_and_forgets_no_record(stepped, once, back):
    held = once.acquire("held")
    once.acquire("done").complete("result")
    once.acquire("cleared").complete(None)
    (fence,) = [record.fence for record, _ in once.ledger.records() if record.key.endswith("cleared")]
    assert once.ledger.clear("claim:cleared")
    stepped.step(back)
    rival = Once(stepped.url)
    with pytest.raises(Busy) as busy:
        rival.acquire("held")
    assert busy.value.retry_after > LEASE / 2 - back, "it lasts that much longer"
    with pytest.raises(Completed):
        rival.acquire("done")
    assert rival.acquire("cleared").fence > fence
    assert not held.lost
    held.extend(LEASE)
    held.complete("late")


def test_an_hour_forward_ends_leases_that_are_not_renewed(stepped, once):
    held = once.acquire("held")
    stepped.step(HOUR)
    heir = Once(stepped.url).acquire("held")
    assert (heir.attempt, heir.fence > held.fence) == (2, True)
    with pytest.raises(LeaseLost):
        held.complete("late")
    heir.complete("heir's")


def test_an_hour_forward_leaves_a_claim_whose_renewal_comes_first(stepped):
    with Once(stepped.url, lease=LEASE, heartbeat=0.2).claim("held") as held:
        end, rival = time.monotonic() + PATIENCE, Once(stepped.url)
        before = lease_of(rival)
        stepped.step(HOUR)
        while lease_of(rival) < before + HOUR / 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        with pytest.raises(Busy):
            rival.acquire("held")
        assert not held.lost
        held.complete(None)


def lease_of(once):
    ((record, _),) = once.ledger.records()
    return record.lease_until


def test_an_hour_forward_forgets_what_it_retained_for_less(stepped):
    Once(stepped.url, retention=60.0).acquire("short").complete(None)
    Once(stepped.url, retention=2 * HOUR).acquire("long").complete(None)
    stepped.step(HOUR)
    once = Once(stepped.url)
    assert once.acquire("short").attempt == 1
    with pytest.raises(Completed):
        once.acquire("long")
