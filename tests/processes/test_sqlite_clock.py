"""One clock for all workers on a file: time namespaces, lxcfs, containers with boot ids of their own, wrong clocks, reboots."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from onceward import Busy, Completed, Once, Parked
from onceward.stores.sqlite import clock as sqlite_clock
from onceward.stores.sqlite import file as sqlite_file
from places import SOURCES
from servers.needs import missing
from servers.wrong_clocks import wrong_clock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def unshare():
    """Start a command in namespaces of its own; some machines do not let us."""

    def start(*options):
        prefix = ["unshare", *options]
        try:
            allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
        except FileNotFoundError:
            allowed = False
        return prefix if allowed else missing(f"{' '.join(prefix)} is for root, on Linux 5.6 or newer")

    return start


def worker(prefix, code, *arguments):
    code = "import sys, time\nfrom onceward import *\n" + code
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, "PYTHONPATH": str(SOURCES)}}
    return subprocess.Popen([*prefix, sys.executable, "-c", code, *map(str, arguments)], text=True, **pipes)


HOLDS = """
claim = Once("sqlite:///" + sys.argv[1], lease=float(sys.argv[2])).acquire("k")
print("held", flush=True)
sys.stdin.readline()
"""
TELLS = """
once = Once("sqlite:///" + sys.argv[1])
for line in sys.stdin:
    try:
        once.acquire("k")
        said = "claimed"
    except Busy:
        said = "busy"
    print(said, once.ledger.show("claim:k")[1], flush=True)
"""


def ask(process):
    process.stdin.write("?\n")
    process.stdin.flush()
    said, now = process.stdout.readline().split()
    return said, float(now)


def bound(unshare, tmp_path, target, text):
    """A command's prefix: it sees ``text`` in the place of a file of /proc, as in a container with lxcfs."""
    fake = tmp_path / target.replace("/", "_")
    fake.write_text(text)
    script = f'mount --bind {fake} {target} && exec "$@"'
    return [*unshare("--mount"), "sh", "-c", script, "sh"]


@pytest.mark.parametrize(
    ("first", "second"), [("ahead", "late"), ("plain", "uptime"), ("plain", "boot_id"), ("plain", "hidden")]
)
def test_workers_in_namespaces_and_containers_share_one_clock(path, tmp_path, unshare, first, second):
    """A live lease of the one is respected by the other, a dead one's key is free in time, and they tell one time."""
    places = {
        "plain": list,
        "ahead": lambda: unshare("--time", "--boottime", "260000"),
        "late": lambda: unshare("--time", "--boottime", "77"),
        "uptime": lambda: bound(unshare, tmp_path, "/proc/uptime", "7.00 3.00\n"),
        "boot_id": lambda: bound(unshare, tmp_path, sqlite_clock.BOOT_ID, "11111111-2222-3333-4444-555555555555\n"),
        "hidden": lambda: [*bound(unshare, tmp_path, sqlite_clock.BOOT_ID, ""), "env", *an_hour_ahead],
    }
    an_hour_ahead = [f"{name}={value}" for name, value in wrong_clock("+1h").items()]
    first, second = places[first](), places[second]()
    holder = worker(first, HOLDS, path, 60)
    assert holder.stdout.readline() == "held\n"
    other, rival = worker(second, TELLS, path), worker(first, TELLS, path)
    (said, now), (also, then) = ask(other), ask(rival)
    assert (said, also) == ("busy", "busy")
    assert abs(now - then) < 5
    assert abs(now - time.time()) < 60
    holder.communicate("\n", timeout=120)
    Once(f"sqlite:///{path}").ledger.clear("claim:k", live=True)
    dead = worker(first, HOLDS, path, 0.3)
    dead.communicate("\n", timeout=120)
    time.sleep(0.4)
    assert ask(other)[0] == "claimed"
    for process in (other, rival):
        process.communicate(timeout=120)


# --- machines that reboot, and whose clocks are wrong -----------------------------------------------------------------

HOUR, DAY = 3600.0, 86400.0


class Machine:
    """A machine whose wall clock and whose power switch are in our hands."""

    def __init__(self, path):
        self.path = path
        self.boot, self.uptime, self.wall = "boot 1", 1000.0, 1.7e9

    def pass_(self, seconds):
        self.uptime += seconds
        self.wall += seconds

    def reboot(self, wall, uptime=20.0):
        self.boot, self.uptime, self.wall = f"boot {int(self.boot.split()[1]) + 1}", uptime, wall

    def once(self, **options):
        return Once(f"sqlite:///{self.path}", clock=lambda: self.uptime, **options)


@pytest.fixture
def machine(path, monkeypatch):
    made = Machine(path)
    monkeypatch.setattr(sqlite_clock, "boottime", lambda: made.uptime)
    monkeypatch.setattr(sqlite_clock, "boot_id", lambda: made.boot)
    monkeypatch.setattr(time, "time", lambda: made.wall)
    return made


def now_of(once):
    list(once.ledger.records())
    return once.store._file.now()


@contextlib.contextmanager
def using(machine, **options):
    once = machine.once(**options)
    yield once
    once.close()


def test_a_wall_clock_wrong_at_boot_is_corrected_without_a_reboot(machine):
    machine.wall -= 3 * HOUR
    with using(machine) as once:
        once.acquire("live", lease=600)
        once.run("done", int)
    machine.wall += 3 * HOUR
    for seconds in (5, 61, 1):
        machine.pass_(seconds)
        with using(machine) as once:
            now = now_of(once)
    assert abs(now - machine.wall) < 3
    with using(machine) as once:
        with pytest.raises(Busy) as busy:
            once.acquire("live")
        assert 500 < busy.value.retry_after < 600, "a lease is as long as it was, although the clock went forwards"
        machine.pass_(600)
        once.acquire("live")


def test_a_worker_that_runs_on_corrects_the_clock_when_it_is_alone(machine):
    machine.wall -= 3 * HOUR
    with using(machine, retention=DAY) as once:
        claim = once.acquire("live", lease=10_000)
        once.run("done", int)
        machine.wall += 3 * HOUR
        for number in range(200):
            machine.pass_(2)
            once.run(number, int)
        assert abs(now_of(once) - machine.wall) < 3
        with using(machine) as rival, pytest.raises(Busy):
            rival.acquire("live")
        claim.complete()
        with pytest.raises(Completed):
            once.acquire("live")


def test_the_clock_of_a_file_that_others_have_open_stays_where_it_is(machine):
    machine.wall -= 3 * HOUR
    with using(machine) as other:
        before = now_of(other)
        machine.wall += 3 * HOUR
        for seconds in (5, 61, 1):
            machine.pass_(seconds)
            with using(machine) as once:
                assert abs(now_of(once) - before - machine.uptime + 1000) < 3
    machine.pass_(61)
    with using(machine) as once:
        assert abs(now_of(once) - machine.wall) < 3


def test_after_a_reboot_set_back_a_dead_workers_key_is_busy_for_one_lease(machine):
    with using(machine, lease=60) as once:
        claim = once.acquire("k")
        for _ in range(20 * 60):  # ten hours of heartbeats
            machine.pass_(30)
            claim.extend()
        written = now_of(once)
    machine.reboot(machine.wall - 10 * HOUR)
    with using(machine, lease=60) as once:
        assert written <= now_of(once) < written + 11
        with pytest.raises(Busy):
            once.acquire("k")
        machine.pass_(61)
        again = once.acquire("k")
        assert again.record.lease_until - now_of(once) == pytest.approx(60)
        assert again.fence > claim.fence


@pytest.mark.parametrize(("before", "after"), [(1000.0, 20.0), (20.0, 500.0)])
def test_after_a_reboot_the_clock_is_the_time_of_day_and_dead_workers_keys_are_free(machine, before, after):
    machine.uptime = before
    with using(machine) as once:
        once.acquire("k", lease=60)
    machine.reboot(machine.wall + 600, uptime=after)
    with using(machine) as once:
        assert abs(now_of(once) - machine.wall) < 1
        once.acquire("k")


def test_after_a_reboot_a_month_ahead_no_record_is_forgotten(machine):
    options = {"retention": 7 * DAY, "on_lapse": "park"}
    with using(machine, **options) as once:
        once.acquire("k", name="pay").complete()
        once.acquire("dead", name="pay")
    machine.reboot(machine.wall + 30 * DAY)
    with using(machine, **options) as once:
        for number in range(40):
            once.run(number, int)  # which purges what has expired
        with pytest.raises(Completed):
            once.acquire("k", name="pay")
        with pytest.raises(Parked):
            once.acquire("dead", name="pay")
    machine.reboot(machine.wall - 30 * DAY)
    with using(machine, **options) as once:
        with pytest.raises(Completed):
            once.acquire("k", name="pay")
        machine.pass_(8 * DAY)
        once.acquire("k", name="pay")


@pytest.mark.parametrize("kind", ["reboot", "clear", "purge and reboot"])
def test_fences_grow_whatever_happens_to_clock_and_record(machine, kind):
    fences = []
    for _ in range(5):
        with using(machine, retention=50, lease=50) as once:
            now_of(once)
            machine.pass_(101)
            claim = once.acquire("k")
            fences.append(claim.fence)
            claim.complete()
            if kind == "clear":
                once.ledger.clear("claim:k")
                continue
            machine.pass_(101)
            assert kind == "reboot" or once.ledger.purge() == 1
        machine.reboot(machine.wall - HOUR)
    assert fences == sorted(set(fences))


assert sqlite_file.CONFIRM == 60.0  # the tests above reckon with it
