"""Procrastinate's tasks under a guard, with its own worker and its jobs in PostgreSQL."""

import asyncio
import sys
import uuid
from contextlib import asynccontextmanager

import psycopg
import pytest
from procrastinate import App, PsycopgConnector, RetryStrategy

from onceward import Claim, Once
from onceward.procrastinate import exactly
from onceward.procrastinate.exactly import ENQUEUED, ProcrastinateJobs

guarded_tasks = sys.modules[exactly.__module__]
PATIENCE = 180  # seconds
RETRY = RetryStrategy(max_attempts=3)


@pytest.fixture
def database(postgres15):
    """The URL of a schema of its own."""
    schema = f"jobs_{uuid.uuid4().hex}"
    postgres15.sql(f"CREATE SCHEMA {schema}", database="test")
    return f"{postgres15.url}?options=-csearch_path%3D{schema}"


@pytest.fixture
def app(database):
    made = App(connector=PsycopgConnector(conninfo=database))
    with psycopg.connect(database) as connection:
        connection.execute(made.schema_manager.get_schema().replace("%%", "%"))
    return made


@pytest.fixture
def once():
    return Once("memory:", lease=3)  # a busy job comes again when the lease ends


def task(app, once, function, *, retry=False, **options):
    options.setdefault("name", "charge")
    return exactly(once, **options)(app.task(function, name="charge", retry=retry, pass_context=False))


def jobs(database):
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT status::text, attempts FROM procrastinate_jobs ORDER BY id").fetchall()


@asynccontextmanager
async def working(app, **options):
    """Let a worker run, and cancel it at the end."""
    async with app.open_async():
        worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, **options))
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def holds(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)


async def work(app, database):
    """Let a worker run until no job waits or runs."""
    async with working(app, fetch_job_polling_interval=0.1, concurrency=4):
        await holds(lambda: not {status for status, _ in jobs(database)} & {"todo", "doing"})
    return jobs(database)


RUNS = []


@pytest.fixture
def runs():
    """The orders for which :func:`charge` ran."""
    RUNS.clear()
    return RUNS


def charge(order):
    RUNS.append(order)


async def defer(app, task, *calls):
    async with app.open_async():
        for arguments in calls:
            await task.defer_async(**arguments)


async def test_a_busy_job_comes_again_and_counts_no_attempt(app, database, once, runs):
    once.acquire(42, name="charge", lease=3)
    await defer(app, task(app, once, charge, key="order"), {"order": 42})
    assert await work(app, database) == [("succeeded", 1)]
    assert runs == [42]


async def test_a_busy_job_comes_again_though_its_worker_stops_meanwhile(app, database, once, runs, monkeypatch):
    uncounting, uncount = [], guarded_tasks._uncount

    async def slow(context):
        uncounting.append(context)
        await asyncio.sleep(0.5)
        await uncount(context)

    monkeypatch.setattr(guarded_tasks, "_uncount", slow)
    once.acquire(42, name="charge", lease=3)
    await defer(app, task(app, once, charge, key="order"), {"order": 42})
    async with working(app, shutdown_graceful_timeout=0.1):
        await holds(lambda: uncounting)
    assert jobs(database) == [("todo", 0)]
    assert await work(app, database) == [("succeeded", 1)]
    assert runs == [42]


async def test_a_parked_job_stays_with_a_worker_that_deletes_what_failed(app, database, once):
    runs = []

    def charge(order):
        runs.append(order)
        if len(runs) == 1:
            raise ValueError("no such card")

    await defer(app, task(app, once, charge, retry=RETRY, max_attempts=1), {"order": 42})
    async with app.open_async():
        await app.run_worker_async(wait=False, install_signal_handlers=False, delete_jobs="always")
    assert jobs(database) == [("todo", 1)]
    assert runs == [42]


@pytest.mark.parametrize(("lock", "options"), [("orders", {"key": "order"}), (f"{ENQUEUED}a", {})])
async def test_a_job_that_a_stopping_worker_cancels_comes_again_beside_one_of_its_lock_and_counts_no_attempt(
    app, database, once, lock, options
):
    begun = []

    async def charge(order):
        begun.append(order)
        if len(begun) == 1:
            await asyncio.sleep(PATIENCE)

    guarded = task(app, once, charge, **options).configure(queueing_lock=lock)
    await defer(app, guarded, {"order": 42})
    async with working(app, shutdown_graceful_timeout=0.1):
        await holds(lambda: begun)
        await guarded.defer_async(order=42)
    assert jobs(database) == [("todo", 0)] * 2
    assert await work(app, database) == [("succeeded", 1)] * 2
    assert begun == [42, 42]


async def test_a_cancelled_job_is_aborted_and_keeps_its_key_claimed(app, database, once):
    begun = []

    async def charge(order):
        begun.append(order)
        await asyncio.sleep(PATIENCE)

    guarded = task(app, once, charge, key="order")
    await defer(app, guarded, {"order": 42})
    async with working(app, abort_job_polling_interval=0.1):
        await holds(lambda: begun)
        await app.job_manager.cancel_job_by_id_async(1, abort=True)
        await holds(lambda: jobs(database)[0][0] != "doing")
    assert jobs(database)[0][0] == "aborted"
    assert [record.status for record, _ in once.ledger.records()] == ["IN_PROGRESS"]


async def test_effect_record_and_next_job_commit_together(app, database, postgres15):
    ledger = Once(database.replace("postgres://", "postgresql://"), lease=3)
    sent = []

    @exactly(ledger, key="order", name="charge")
    @app.task(name="charge")
    async def charge(order: int, claim: Claim) -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            async with claim.transaction(connection):
                await ship.configure(connection=connection).defer_async(order=order)

    @exactly(ledger, name="ship")
    @app.task(name="ship")
    def ship(order: int) -> None:
        sent.append(order)

    await defer(app, charge, {"order": 42}, {"order": 42})
    assert {status for status, _ in await work(app, database)} == {"succeeded"}
    assert sent == [42]
    ledger.close()


def test_two_jobs_of_one_enqueue_take_effect_once(app, database, once, runs):
    guarded = task(app, once, charge)
    queue = ProcrastinateJobs(guarded)
    for key in ("a", "a", "b"):
        queue.put(key, {"order": 1}, {})
    assert jobs(database) == [("todo", 0)] * 2  # the second one of a key that waits is the first one
    queue.close()
    asyncio.run(work(app, database))
    queue.put("a", {"order": 1}, {})  # as after a lost reply, when the first one has run
    queue.close()
    asyncio.run(work(app, database))
    assert jobs(database) == [("succeeded", 1)] * 3
    assert runs == [1, 1]


async def test_a_job_whose_number_comes_again_in_a_restored_database_is_not_taken_for_an_old_one(app, database, once):
    runs = []

    def charge(order):
        runs.append(order)

    guarded = task(app, once, charge)
    await defer(app, guarded, {"order": 42})
    await work(app, database)
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE procrastinate_jobs RESTART IDENTITY CASCADE")
    await defer(app, guarded, {"order": 43}, {"order": 44})
    await work(app, database)
    assert runs == [42, 44]
    assert [status for status, _ in jobs(database)] == ["failed", "succeeded"]
