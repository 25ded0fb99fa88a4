"""The source ``schedule``: one message in each window, by the ledger's clock."""

import asyncio
import contextlib
import datetime as dt
import json
import sqlite3

import pytest

from commands.pipeline_runs import opened
from onceward import Once
from onceward.core.retries import retry_transient
from onceward.errors import StoreError
from onceward.outbox import relay
from onceward.pipelines import PipelineInvalid, flow
from onceward.pipelines.pipeline import PipelineRun
from onceward.pipelines.sources import schedule
from onceward.pipelines.sources.schedule import CronCalendar, EvenCalendar, ScheduleRuns
from queues.boxes import Box, left_by_a_crash
from tables import each

PATIENCE = 60
LONG = "made.append(message)\n    __import__('time').sleep(1)"


@pytest.fixture
def scheduled(pipelines):
    """Give a function that writes a pipeline with this schedule, and what its step does."""

    def write(schedule, *, step="made.append(message)", guard=""):
        pipelines.functions(f"def job(message):\n    {step}\n")
        head = f"name: nightly\nsource: {json.dumps({'schedule': schedule})}\nbackoff: {{first: 0.05, longest: 0.05}}\n"
        return pipelines.write("steps: [{call: {function: 'SHOP:job'}}]\n", head=head, guard=guard)

    return write


def run(jobs):
    outcomes = []
    asyncio.run(opened(jobs.load(), outcomes.append).run_async(until_empty=True))
    return outcomes


async def run_until(runs, holds):
    task = asyncio.create_task(runs.run_async())
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.02)
    runs.stop()
    await task


def test_a_run_sends_what_a_killed_one_has_left(scheduled, monkeypatch):
    box = Box()
    monkeypatch.setattr(relay, "EVERY", 0.05)
    jobs = scheduled({"every": "1000d"})
    left_by_a_crash(jobs.load().once, monkeypatch, "order-7", (box.address, "paid"))
    with contextlib.closing(sqlite3.connect(jobs.folder / "ledger.db")) as connection, connection:
        connection.execute("UPDATE onceward SET due_at = due_at - 1000")
    asyncio.run(run_until(PipelineRun(jobs.load()), lambda: box.bodies))
    assert box.bodies == ["paid"]


def test_two_machines_run_a_window_once(scheduled):
    jobs = scheduled({"every": "1000d", "data": {"shop": 7}})
    first, second = run(jobs), run(jobs)
    assert [one.status for one in (*first, *second)] == ["done", "replayed"]
    (message,) = jobs.made
    assert message["data"] == {"shop": 7}
    assert message["window"].endswith("Z")
    assert first[0].key == f'nightly:"{message["window"]}"'


@pytest.mark.parametrize("windows_later", [1, 20])
def test_a_half_done_window_is_finished_after_others_have_begun(scheduled, monkeypatch, windows_later):
    jobs = scheduled({"every": "1000d"}, step="made.append(message)\n    assert len(made) > 1")

    async def stopped_early():
        runs = opened(jobs.load())
        await run_until(runs, lambda: jobs.made)

    asyncio.run(stopped_early())
    now = ScheduleRuns._now

    async def later(runs):
        return await now(runs) + windows_later * 86_400_000.0

    def away_at_first(*request):
        if troubles:
            raise troubles.pop()
        return retry_transient(*request)

    troubles = [StoreError("away")]
    monkeypatch.setattr(flow, "retry_transient", away_at_first)
    monkeypatch.setattr(flow, "_TROUBLE", 0.01)
    monkeypatch.setattr(ScheduleRuns, "_now", later)
    assert [one.status for one in run(jobs)] == ["done", "done"]
    before, *others = [message["window"] for message in jobs.made]
    assert len(set(others)) == 2
    assert before in others
    assert [one.status for one in run(jobs)] == ["replayed"]


def test_a_running_machine_finishes_a_window_that_another_one_left_half_done(scheduled, monkeypatch):
    jobs = scheduled({"every": "1000d"}, step="made.append(message)\n    assert len(made) > 1")
    now, ahead, outcomes = ScheduleRuns._now, [1], []

    async def moved(runs):
        return await now(runs) + ahead[0] * 86_400_000.0

    def all_done():
        ahead[0] = 2 if outcomes else 0
        return len(outcomes) == 3

    monkeypatch.setattr(ScheduleRuns, "_now", moved)
    monkeypatch.setattr(schedule, "_LONGEST", 0.01)
    asyncio.run(run_until(opened(jobs.load()), lambda: jobs.made))
    asyncio.run(run_until(opened(jobs.load(), outcomes.append), all_done))
    assert [one.status for one in outcomes] == ["done"] * 3


def test_a_window_is_left_out_when_it_is_too_late(scheduled):
    jobs = scheduled({"every": "1000d", "late": 0})
    assert run(jobs) == []
    assert jobs.made == []


def test_a_half_done_window_is_finished_after_its_time_to_begin(scheduled, monkeypatch, caplog):
    monkeypatch.setattr(schedule, "_BEFORE", 0)
    step = "made.append(message)\n    assert len(made) > 1"
    jobs = scheduled({"every": "1000d"}, step=step)
    asyncio.run(run_until(opened(jobs.load()), lambda: jobs.made))
    assert [one.status for one in run(scheduled({"every": "1000d", "late": 0}, step=step))] == ["done"]
    assert "windows before the last 1 may be half done" in caplog.text


def test_a_stop_waits_for_the_job_that_runs_also_while_other_windows_are_looked_up(scheduled, monkeypatch):
    jobs, load, outcomes = scheduled({"every": "1000d"}, step=LONG), flow.Flow.load, []

    async def slow(self, key):
        await asyncio.sleep(0.3)
        return await load(self, key)

    monkeypatch.setattr(flow.Flow, "load", slow)
    asyncio.run(run_until(opened(jobs.load(), outcomes.append), lambda: jobs.made))
    assert [one.status for one in outcomes] == ["done"]


def test_a_stop_while_the_pipeline_holds_begins_nothing(scheduled, pipelines):
    jobs = scheduled({"every": "1000d"}, guard="hold: {key: 'ops:migration', every: 20ms}\n")
    with contextlib.closing(Once(pipelines.ledger)) as once, once.claim("migration", name="ops"):
        runs = opened(jobs.load())
        asyncio.run(run_until(runs, lambda: runs.flow.is_held))
    assert not jobs.made


def test_windows_of_a_length_with_fractions_begin_where_they_begin():
    for length in (60.1, 1.1, 4.1 * 3600):
        calendar = EvenCalendar(length)
        starts = [calendar.last(1_800_000_000.0 + 7.3 * number) for number in range(2000)]
        assert [calendar.last(start) for start in starts] == starts


@each(
    ("expression", "now", "last", "following"),
    [
        ("0 3 * * 1-5", "2026-03-29T12:00", "2026-03-27T03:00", "2026-03-30T03:00"),
        ("0 3 * * 1-5", "2026-03-27T03:00", "2026-03-27T03:00", "2026-03-30T03:00"),
        ("30 *,2 25 10 *", "2026-10-25T02:59:59", "2026-10-25T02:30", "2026-10-25T03:30"),
    ],
)
def test_windows_of_cron_begin_in_utc(expression, now, last, following):
    calendar = CronCalendar(expression)
    moment, before, after = (dt.datetime.fromisoformat(f"{one}+00:00").timestamp() for one in (now, last, following))
    assert (calendar.last(moment), calendar.next(moment)) == (before, after)
    assert (calendar.last(moment + 0.9), calendar.next(moment + 0.9)) == (before, after)


@each(
    ("schedule", "what"),
    [
        ({}, "give every"),
        ({"every": 0.1}, "at least a second"),
        ({"cron": "0 0 31 2 *"}, "not a cron expression"),
        ({"cron": "R 3 * * *"}, "at another time"),
        ({"cron": "* * * * * *"}, "five fields"),
    ],
)
def test_a_schedule_that_is_not_valid_is_told(scheduled, schedule, what):
    jobs = scheduled(schedule)
    with pytest.raises(PipelineInvalid, match=what):
        jobs.load()


@pytest.mark.parametrize("guard", ["", "guard: {retention: 1m}\n"])
def test_a_window_longer_than_the_retention_is_run_once(scheduled, guard):
    jobs = scheduled({"every": "1000d"}, guard=guard)
    with contextlib.closing(sqlite3.connect(jobs.folder / "ledger.db")) as ledger:
        (done,) = run(jobs)
        ((left,),) = ledger.execute("SELECT expires_at - unixepoch() FROM onceward WHERE key = ?", (done.key,))
    assert left >= 1000 * 86_400  # a start in this window or the next one finds it
    assert len(jobs.made) == 1


def test_a_clock_that_is_set_back_begins_no_running_window_again(scheduled, monkeypatch):
    step = "made.append(message)\n    while 'go' not in made:\n        __import__('time').sleep(0.01)"
    jobs = scheduled({"every": "1000d"}, step=step)
    now, asked, outcomes = ScheduleRuns._now, [], []

    async def back_and_forth(runs):
        asked.append(1)
        return await now(runs) + 86_400_000.0 * (len(asked) % 2)

    monkeypatch.setattr(ScheduleRuns, "_now", back_and_forth)
    monkeypatch.setattr(schedule, "_LONGEST", 0.01)

    def both_run():
        if len(asked) < 8 or len(jobs.made) < 2:
            return False
        jobs.made.append("go")
        return True

    asyncio.run(run_until(opened(jobs.load(), outcomes.append), both_run))
    assert [one.status for one in outcomes] == ["done", "done"]


def test_a_window_that_is_parked_is_left(scheduled):
    jobs = scheduled({"every": "1000d"}, step="raise OSError", guard="guard: {key: message.window, attempts: 2}\n")
    assert [one.status for one in run(jobs)][-1] == "parked"
