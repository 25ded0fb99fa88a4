"""Once per window: whoever starts the job, how often, and whatever the worker's clock says."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from faults.processes import lines, workers
from onceward import Busy, KeyMissing, Once, StoreError
from onceward.core.record import COMPLETED, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import EPOCH, ManualClock
from onceward.testing.faults import Faults, fail_after, fail_before, when
from tables import each

pytestmark = pytest.mark.sampled(started=1)

HOUR = 3600.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def once(clock):
    return Once(MemoryStore(clock), clock=clock)


class Job:
    """A job that counts its runs."""

    def __init__(self):
        self.runs = 0
        self.error = None

    def __call__(self, *args):
        self.runs += 1
        if self.error is not None:
            raise self.error
        return self.runs

    async def in_a_coroutine(self, *args):
        await asyncio.sleep(0)
        return self(*args)


@pytest.fixture
def job():
    return Job()


@pytest.fixture(params=["def", "async def"])
def started(request, once, job):
    """What makes a start of the job: a function of the options of ``per`` and the arguments of the job."""

    def start(*args, window="1h", **options):
        if request.param == "def":
            return once.per(window, "report", **options)(job)(*args)
        return asyncio.run(once.per(window, "report", **options)(job.in_a_coroutine)(*args))

    return start


def keys(once):
    return [record.key for record, _ in once.ledger.records()]


def window_of(once, window="1h", **options):
    """The start of the window that a start falls into now, as its key tells."""
    name = f"probe{len(keys(once))}"
    once.per(window, name, **options)(lambda: None)()
    (key,) = [key for key in keys(once) if key.startswith(f"{name}:")]
    return key.removeprefix(f"{name}:").strip('"')


# --- windows ----------------------------------------------------------------------------------------------------------


def test_a_second_start_within_a_window_gets_the_recorded_result(started, clock, job):
    assert [started(), started("whatever", "its", "arguments")] == [1, 1]
    clock.advance(HOUR / 2)
    assert started() == 1
    clock.advance(HOUR / 2)
    assert started() == 2
    assert job.runs == 2


def test_the_key_is_the_start_of_the_window_for_a_person_to_read(once):
    once.per("1h", "report")(lambda: None)()
    assert keys(once) == ['report:"2026-01-01T00:00:00Z"']


@pytest.mark.parametrize(
    ("window", "start"),
    [
        ("90s", "2026-01-01T13:46:30Z"),
        (90, "2026-01-01T13:46:30Z"),
        ("15m", "2026-01-01T13:45:00Z"),
        ("1h", "2026-01-01T13:00:00Z"),
        ("1d", "2026-01-01T00:00:00Z"),
        ("7d", "2026-01-01T00:00:00Z"),  # a Thursday, like the epoch
        (2.5, "2026-01-01T13:47:05Z"),
        (7, "2026-01-01T13:47:03Z"),
    ],
)
def test_windows_are_aligned_to_the_epoch(once, clock, window, start):
    clock.advance(13 * HOUR + 47 * 60 + 5)
    assert window_of(once, window) == start


@pytest.mark.parametrize(
    ("offset", "start"),
    [
        (0, "13:00:00"),
        (1800, "13:30:00"),
        (-1800, "13:30:00"),
        (600.5, "13:10:00.500000"),
        (3 * HOUR + 900, "13:15:00"),
        (2880, "12:48:00"),
    ],
)
def test_an_offset_moves_the_edges(once, clock, offset, start):
    clock.advance(13 * HOUR + 46 * 60)
    assert window_of(once, "1h", offset=offset) == f"2026-01-01T{start}Z"


@pytest.mark.parametrize(
    ("window", "before", "counts_to_the_next"),
    [
        ("1h", 60, True),
        ("1h", 60.001, False),
        ("1d", 60, True),
        ("1d", 61, False),
        ("10m", 30, True),
        ("10m", 30.001, False),
        ("1h", 0, True),
    ],
)
def test_a_start_right_before_an_edge_counts_to_the_next_window(once, clock, window, before, counts_to_the_next):
    clock.advance(2 * 86400 - before)
    assert (window_of(once, window) == "2026-01-03T00:00:00Z") is counts_to_the_next


def test_cron_jobs_on_machines_a_little_ahead_and_behind_share_a_window(started, clock, job):
    for _ in range(3):
        clock.advance(HOUR - 20)
        started()
        clock.advance(20 + 1)
        started()
        clock.advance(-1)
    assert job.runs == 3


def test_what_the_ledgers_imprecise_clock_may_hide_counts_to_next_window(clock, job):
    store = MemoryStore(clock)
    store.resolution = 1.0
    once = Once(store, clock=clock)
    clock.advance(HOUR - 1.5)
    assert window_of(once, "10s") == "2026-01-01T01:00:00Z"


# --- the time it was scheduled for ------------------------------------------------------------------------------------


@each(
    "at",
    [
        datetime(2026, 3, 4, 5, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 3, 4, 7, 30, tzinfo=timezone(timedelta(hours=2))),
        datetime(2026, 3, 4, 5, tzinfo=UTC).timestamp(),
        int(datetime(2026, 3, 4, 5, 30, tzinfo=UTC).timestamp()),
    ],
)
def test_a_time_given_says_which_window_it_is_exactly(once, at):
    assert window_of(once, "1h", at=at) == "2026-03-04T05:00:00Z"


@pytest.mark.parametrize(
    "at", ["event.time", lambda event: event["time"], lambda event: EPOCH + 5], ids=["path", "text", "number"]
)
def test_a_time_is_found_in_the_arguments(once, job, at):
    @once.per("1h", "report", at=at)
    def handler(event, context=None):
        return job()

    event = {"time": "2026-01-01T00:00:00Z"}
    assert [handler(event), handler(event, "context"), handler(event=event)] == [1, 1, 1]
    assert keys(once) == ['report:"2026-01-01T00:00:00Z"']


@pytest.mark.parametrize(
    ("time", "error"),
    [
        (None, KeyMissing),
        ("tomorrow", ValueError),
        ("2026-01-01T00:00:00", ValueError),
        (datetime(2026, 1, 1), ValueError),
        (True, ValueError),
        (float("nan"), ValueError),
        (1e30, ValueError),
        ([], ValueError),
    ],
    ids=str,
)
def test_a_time_that_is_none_stops_the_job_before_it_runs(once, job, time, error):
    handler = once.per("1h", "report", at="event.time")(lambda event: job())
    with pytest.raises(error):
        handler({"time": time})
    assert job.runs == 0
    if time is not None and time != []:
        with pytest.raises(error):
            once.per("1h", "report", at=time if not isinstance(time, str) else datetime(2026, 1, 1))


def test_with_a_time_given_the_ledger_is_not_asked_for_its_own(job, clock):
    store = Faults(MemoryStore(clock), lambda ask: None)
    Once(store, clock=clock).per("1h", "report", at=EPOCH)(job)()
    assert [ask.verb for ask in store.asked] == ["insert", "swap"]


# --- as any guarded function ------------------------------------------------------------------------------------------


def test_a_job_that_failed_runs_again_in_the_same_window(started, once, job):
    job.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        started()
    (record,) = [record for record, _ in once.ledger.records()]
    assert record.status == RELEASED
    job.error = None
    assert started() == 2
    assert started() == 2


def test_a_start_while_it_runs_elsewhere_is_busy(tmp_path, job):
    begun, ended = threading.Event(), threading.Event()
    once = Once(f"sqlite:///{tmp_path}/ledger.db")

    def long():
        begun.set()
        ended.wait()
        return "done"

    at = datetime(2026, 1, 1, tzinfo=UTC)
    thread = threading.Thread(target=once.per("1h", "report", at=at)(long))
    thread.start()
    begun.wait()
    with pytest.raises(Busy):
        once.per("1h", "report", at=at)(job)()
    assert once.per("1h", "report", at=at, on_busy="skip")(job)() is None
    ended.set()
    thread.join()
    assert once.per("1h", "report", at=at)(job)() == "done"
    once.close()


def test_many_starts_at_once_run_the_job_once(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", on_busy=30.0)
    runs, results = [], []
    start = once.per("1d", "report", offset=middle(once, 86400))(lambda: runs.append(1) or len(runs))
    threads = [threading.Thread(target=lambda: results.append(start())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (runs, results) == ([1], [1] * 8)
    once.close()


@pytest.mark.parametrize(
    ("given", "kept"), [({}, 14 * 86400), ({"retention": 60}, 2 * HOUR), ({"retention": None}, None)]
)
def test_a_record_stays_for_two_windows_at_least(once, given, kept):
    once.per("1h", "report", **given)(lambda: None)()
    (record,) = [record for record, _ in once.ledger.records()]
    assert record.status == COMPLETED
    assert record.expires_at == (None if kept is None else EPOCH + kept)


# --- the ledger's clock -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda fault: fault.kind.name)
def test_a_ledger_that_fails_for_a_moment_is_asked_again(fault, job):
    store = Faults(MemoryStore(), when(lambda ask: ask.verb == "load", fault, times=2))
    assert Once(store).per("1h", "report")(job)() == 1
    assert sum(ask.verb == "load" for ask in store.asked) == 3


def test_when_the_ledger_cannot_tell_the_time_the_job_does_not_run(job):
    store = Faults(MemoryStore(), when(lambda ask: ask.verb == "load", fail_before(StoreError)))
    with pytest.raises(StoreError):
        Once(store).per("1h", "report")(job)()
    assert job.runs == 0


def middle(once, length):
    """The offset that puts the ledger's now into the middle of a window, so that no test runs over an edge."""
    (record,) = [once.acquire("now", name="clock").record]
    return (record.created_at + length / 2) % length


def check_skewed(url, start, faketime, log):
    once = Once(url)
    offset = middle(once, HOUR)
    for hours in (0, -1, 1, 24):
        prefix = faketime(f"{hours:+d}h") if hours else []
        worker = start(url, log, offset, prefix=prefix)
        said, result = lines(worker)
        assert float(said) - datetime.now(UTC).timestamp() == pytest.approx(hours * HOUR, abs=60)
        assert result == "done"
    assert log.read_text() == "run\n"
    once.close()


def test_workers_whose_clocks_are_hours_off_start_nothing_twice(tmp_path, faketime):
    with workers("per_worker.py") as start:
        check_skewed(f"sqlite:///{tmp_path}/ledger.db", start, faketime, tmp_path / "log")


def test_workers_whose_clocks_are_hours_off_start_nothing_twice_on_dynamo(url, tmp_path, faketime):
    with workers("per_worker.py") as start:
        check_skewed(url, start, faketime, tmp_path / "log")


# --- options ----------------------------------------------------------------------------------------------------------


@each(
    "window",
    ["", "1", "h", "0h", "-1h", "1 h", "1w", "1.5h", "1h30m", 0, 0.5, -1, True, None, float("nan"), 1e12],
)
def test_a_window_that_is_none_is_refused_when_decorating(once, window):
    with pytest.raises((ValueError, TypeError), match="window="):
        once.per(window)


@each("offset", ["1h", True, float("inf"), float("nan"), None])
def test_an_offset_that_is_none_is_refused_when_decorating(once, offset):
    with pytest.raises(ValueError, match="offset="):
        once.per("1h", offset=offset)


def test_a_window_that_the_ledgers_clock_cannot_tell_is_refused(url):
    with pytest.raises(ValueError, match="at least 10 seconds"):
        Once(url).per("9s", "report")
    Once(url).per("10s", "report")
