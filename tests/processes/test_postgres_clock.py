"""A PostgreSQL server whose clock is stepped while it is used."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from onceward import Busy, Completed, LeaseLost, Once
from servers.postgres import Postgres
from servers.wrong_clocks import wrong_clock

LEASE = 60.0
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


def test_a_clock_that_steps_back_ends_no_lease_and_forgets_no_record(stepped, once):
    held = once.acquire("held")
    once.acquire("done").complete("result")
    once.acquire("cleared").complete(None)
    (fence,) = [record.fence for record, _ in once.ledger.records() if record.key.endswith("cleared")]
    assert once.ledger.clear("claim:cleared")
    stepped.step(-HOUR)
    rival = Once(stepped.url)
    with pytest.raises(Busy) as busy:
        rival.acquire("held")
    assert busy.value.retry_after > LEASE / 2 + HOUR, "it lasts that much longer"
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
