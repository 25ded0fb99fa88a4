"""Once per window: whoever starts the job, how often, and whatever the worker's clock says."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from faults.injected import Faults, fail_before, when
from onceward import KeyMissing, Once, StoreError
from onceward.core.record import COMPLETED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import EPOCH, ManualClock
from tables import each


@pytest.fixture
def once(clock):
    return Once(MemoryStore(clock), clock=clock)


HOUR = 3600.0


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


@pytest.fixture
def job():
    return Job()


def keys(once):
    return [record.key for record, _ in once.ledger.records()]


def window_of(once, window="1h", **options):
    """The start of the window that a start falls into now, as its key tells."""
    name = f"probe{len(keys(once))}"
    once.per(window, name, **options)(lambda: None)()
    (key,) = [key for key in keys(once) if key.startswith(f"{name}:")]
    return key.removeprefix(f"{name}:").strip('"')


@pytest.mark.parametrize("awaited", [False, True])
def test_a_second_start_within_a_window_gets_the_recorded_result(once, clock, job, awaited):
    async def job_async(*args):
        return job()

    if awaited:
        started = lambda *args: asyncio.run(once.per("1h", "report")(job_async)(*args))
    else:
        started = once.per("1h", "report")(job)
    assert [started(), started("whatever", "its", "arguments")] == [1, 1]
    clock.advance(HOUR / 2)
    assert started() == 1
    clock.advance(HOUR / 2)
    assert started() == 2
    assert job.runs == 2


@each(
    ("window", "offset", "start"),
    [
        ("90s", 0, "13:46:30"),
        ("15m", 0, "13:45:00"),
        ("1d", 0, "00:00:00"),
        ("7d", 0, "00:00:00"),  # a Thursday, like the epoch
        (2.5, 0, "13:47:05"),
        ("1h", 1800, "13:30:00"),
        ("1h", -1800, "13:30:00"),
        ("1h", 600.5, "13:10:00.500000"),
        ("1h", 2940, "12:49:00"),
    ],
)
def test_windows_are_aligned_to_the_epoch_and_moved_by_an_offset(window, offset, start):
    clock = ManualClock()
    clock.advance(13 * HOUR + 47 * 60 + 5)
    assert window_of(Once(MemoryStore(clock), clock=clock), window, offset=offset) == f"2026-01-01T{start}Z"


@each(
    ("window", "before", "counts_to_the_next"),
    [("1h", 60, True), ("1h", 60.001, False), ("10m", 30, True), ("10m", 30.001, False), ("1h", 0, True)],
)
def test_a_start_right_before_an_edge_counts_to_the_next_window(window, before, counts_to_the_next):
    clock = ManualClock()
    clock.advance(2 * 86400 - before)
    once = Once(MemoryStore(clock), clock=clock)
    assert (window_of(once, window) == "2026-01-03T00:00:00Z") is counts_to_the_next


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


@each("time", [None, "tomorrow", "2026-01-01T00:00:00", datetime(2026, 1, 1), float("nan")])
def test_a_time_that_is_none_stops_the_job_before_it_runs(once, job, time):
    with pytest.raises(KeyMissing if time is None else ValueError):
        once.per("1h", "report", at="event.time")(lambda event: job())({"time": time})
    assert job.runs == 0


@pytest.mark.parametrize(("given", "kept"), [({}, 14 * 86400), ({"retention": 60}, 7200), ({"retention": None}, None)])
def test_a_record_stays_for_two_windows_at_least(once, given, kept):
    once.per("1h", "report", **given)(lambda: None)()
    (record,) = [record for record, _ in once.ledger.records()]
    assert record.status == COMPLETED
    assert record.expires_at == (None if kept is None else EPOCH + kept)


def test_when_the_ledger_cannot_tell_the_time_the_job_does_not_run(job):
    store = Faults(MemoryStore(), when(lambda ask: ask.verb == "load", fail_before(StoreError)))
    with pytest.raises(StoreError):
        Once(store).per("1h", "report")(job)()
    assert job.runs == 0


@each("window", ["", "h", "0h", "-1h", "1w", "1h30m", 0, 0.5, -1, True, None, float("nan"), 1e12])
def test_a_window_an_offset_or_a_time_that_is_none_is_refused_when_decorating(once, window):
    with pytest.raises((ValueError, TypeError), match="window="):
        once.per(window)
    for offset in ("1h", True, float("inf"), float("nan"), None):
        with pytest.raises(ValueError, match="offset="):
            once.per("1h", offset=offset)
    with pytest.raises(ValueError, match="at="):
        once.per("1h", "report", at=datetime(2026, 1, 1))


def test_a_window_that_the_ledgers_clock_cannot_tell_is_refused(url):
    with pytest.raises(ValueError, match="at least 10 seconds"):
        Once(url).per("9s", "report")
    Once(url).per("10s", "report")
