"""A primary that is killed under four workers, and a standby that takes its place, whose clock is five seconds off.

On PostgreSQL and on MariaDB. What a standby that follows late has not heard of is lost, and nothing else.
"""

import collections
import contextlib
import time

import pytest

from faults.processes import PATIENCE, lines, workers
from fixtures import closing_fixture
from onceward import Busy, Once
from onceward.core.record import COMPLETED, IN_PROGRESS
from servers.pairs import PAIRS
from servers.wrong_clocks import wrong_clock

LEASE = 60.0  # seconds: longer than any failover here
COUNT = 120
OFF = 5.0  # seconds that the standby's clock is off
ABANDONED = 8.0
pytestmark = pytest.mark.usefixtures("faketime")


def noted(log, what):
    """Return the words after ``what`` of the log's whole lines: key, value, and on Redis the fence."""
    text = log.read_text().rpartition("\n")[0]
    return [tuple(rest) for kind, *rest in map(str.split, text.splitlines()) if kind == what]


def wait_for(log, what, number):
    end = time.monotonic() + PATIENCE
    while len(noted(log, what)) < number:
        assert time.monotonic() < end
        time.sleep(0.005)


def records(url):
    return {record.key.partition(":")[2]: record for record, _ in Once(url).ledger.records(prefix="k:")}


def end(processes):
    for process in processes:
        assert lines(process) == ["done"]


@pytest.fixture
def start():
    with workers("failover.py") as begin:
        yield begin


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture(params=list(PAIRS.values()), ids=list(PAIRS))
def pair(request):
    return request.param


@pytest.fixture
def primary(pair):
    made = pair.primary()
    made.sql("CREATE TABLE effects (name text)", database="test")
    yield made
    made.stop()


@pytest.fixture
def following(pair, primary):
    """Give a function that makes a standby whose clock is so many seconds off."""
    with contextlib.ExitStack() as stack:

        def make(off, **options):
            made = pair.replica(primary, wrong_clock(f"{off:+.0f}s"), **options)
            stack.callback(made.stop)
            asked = time.time()
            ((shown,),) = made.sql(pair.now)
            assert asked - 0.5 < float(shown) - off < time.time() + 0.5
            return made

        yield make


# A place that leads to the primary.
gate = closing_fixture(lambda pair, primary: pair.wire(primary.port))


def committed(server):
    """Return how often each effect of a transaction was made, and check that it was made if and only if its key is completed."""
    made = dict(server.sql("SELECT name, count(*) FROM effects GROUP BY name", database="test"))
    done = {key for key, record in records(server.url).items() if record.status == COMPLETED and key.startswith("tx")}
    assert made.keys() == done
    return made


def running(start, url, log, *pace):
    return [start(url, log, COUNT, LEASE, *pace) for _ in range(4)]


@pytest.mark.nightly
@pytest.mark.sampled("mariadb-behind")  # histories promote a standby of PostgreSQL
@pytest.mark.parametrize("off", [OFF, -OFF], ids=["ahead", "behind"])
def test_failover_to_a_synchronous_standby_loses_and_doubles_nothing(start, pair, primary, following, gate, log, off):
    standby = following(off)
    url = pair.url(primary, standby, gate)
    abandoned = Once(url, lease=ABANDONED, heartbeat=0)
    claimed = time.monotonic()
    fence = abandoned.acquire("abandoned").fence
    processes = running(start, url, log)
    wait_for(log, "effect", COUNT // 3)
    gate.server = None
    primary.crash()
    standby.promote()
    gate.server = standby.port
    end(processes)
    effects, told = noted(log, "effect"), noted(log, "told")
    assert set(collections.Counter(key for key, _ in effects).values()) == {1}
    made = committed(standby)
    assert set(made.values()) == {1}
    assert made.keys() >= {key for key, _ in noted(log, "committed")}
    assert len(made) > 0.8 * COUNT / 4
    left = {key: record for key, record in records(standby.url).items() if not key.startswith("tx")}
    for key, value in told:
        assert (left[key].status, left[key].result) == (COMPLETED, f'"{value}"')
        assert (key, value) in effects
    # A reply that was lost with the primary can have made a claim, of which nobody knows.
    assert {record.status for key, record in left.items() if key not in dict(effects)} <= {IN_PROGRESS}
    assert len(dict(effects)) > 0.9 * COUNT
    heir = None
    while heir is None:
        with contextlib.suppress(Busy):
            heir = abandoned.acquire("abandoned")
            taken = time.monotonic()
        time.sleep(0.05)
    assert heir.fence > fence
    assert taken - claimed > ABANDONED - off - 0.5, "it lasts that much shorter or longer, and no less"
