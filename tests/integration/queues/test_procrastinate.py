"""Procrastinate's tasks under a guard, with its own worker and its jobs in PostgreSQL."""

import asyncio
import uuid
from contextlib import asynccontextmanager

import psycopg
import pytest
from procrastinate import App, PsycopgConnector, RetryStrategy
from procrastinate.exceptions import JobAborted
from procrastinate.testing import InMemoryConnector

from onceward import Claim, Once
from onceward.procrastinate import exactly
from onceward.procrastinate.exactly import ProcrastinateJobs

pytestmark = pytest.mark.sampled(is_async=1)

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


def work(app, database):
    """Let a worker run until no job waits or runs."""

    async def run():
        async with working(app, fetch_job_polling_interval=0.1, concurrency=4):
            await holds(lambda: not {status for status, _ in jobs(database)} & {"todo", "doing"})

    asyncio.run(run())
    return jobs(database)


def defer(app, task, *calls):
    async def deferred():
        async with app.open_async():
            for arguments in calls:
                await task.defer_async(**arguments)

    asyncio.run(deferred())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_busy_job_comes_again_and_counts_no_attempt(app, database, once, is_async):
    once.acquire(42, name="charge", lease=3)
    runs = []

    def charge(order):
        runs.append(order)

    async def charge_async(order):
        runs.append(order)

    guarded = task(app, once, charge_async if is_async else charge, key="order")
    defer(app, guarded, {"order": 42})

    assert work(app, database) == [("succeeded", 1)]
    assert runs == [42]


def test_a_parked_job_fails_and_is_not_retried(app, database, once):
    runs = []

    def charge(order):
        runs.append(order)
        raise ValueError("no such card")

    defer(app, task(app, once, charge, retry=RetryStrategy(max_attempts=50), max_attempts=2), {"order": 42})

    assert work(app, database) == [("failed", 3)]
    assert runs == [42, 42]


def test_a_parked_job_stays_with_a_worker_that_deletes_what_failed(app, database, once):
    runs = []

    def charge(order):
        runs.append(order)
        if len(runs) == 1:
            raise ValueError("no such card")

    defer(app, task(app, once, charge, retry=RETRY, max_attempts=1), {"order": 42})

    async def run():
        async with app.open_async():
            await app.run_worker_async(wait=False, install_signal_handlers=False, delete_jobs="always")

    asyncio.run(run())
    assert jobs(database) == [("todo", 1)]
    assert runs == [42]


def test_a_job_that_aborts_itself_gives_its_key_back(app, database, once):
    def charge(order):
        raise JobAborted

    guarded = task(app, once, charge, key="order", on_error="park")
    defer(app, guarded, {"order": 42})

    assert work(app, database) == [("aborted", 1)]
    assert [record.status for record, _ in once.ledger.records()] == ["RELEASED"]


def test_a_job_that_a_stopping_worker_cancels_comes_again_and_counts_no_attempt(app, database, once):
    begun = []

    async def charge(order):
        begun.append(order)
        if len(begun) == 1:
            await asyncio.sleep(PATIENCE)

    guarded = task(app, once, charge, key="order")
    defer(app, guarded, {"order": 42})

    async def stopped():
        async with working(app, shutdown_graceful_timeout=0.1):
            await holds(lambda: begun)

    asyncio.run(stopped())
    assert jobs(database) == [("todo", 0)]

    assert work(app, database) == [("succeeded", 1)]
    assert begun == [42, 42]


def test_a_cancelled_job_is_aborted_and_keeps_its_key_claimed(app, database, once):
    begun = []

    async def charge(order):
        begun.append(order)
        await asyncio.sleep(PATIENCE)

    guarded = task(app, once, charge, key="order")
    defer(app, guarded, {"order": 42})

    async def cancelled():
        async with working(app, abort_job_polling_interval=0.1):
            await holds(lambda: begun)
            await app.job_manager.cancel_job_by_id_async(1, abort=True)
            await holds(lambda: jobs(database)[0][0] != "doing")

    asyncio.run(cancelled())
    assert jobs(database)[0][0] == "aborted"
    assert [record.status for record, _ in once.ledger.records()] == ["IN_PROGRESS"]


def test_effect_record_and_next_job_commit_together(app, database, postgres15):
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

    defer(app, charge, {"order": 42}, {"order": 42})

    assert {status for status, _ in work(app, database)} == {"succeeded"}
    assert sent == [42]
    ledger.close()


def test_a_job_whose_number_comes_again_in_a_restored_database_is_not_taken_for_an_old_one(app, database, once):
    runs = []

    def charge(order):
        runs.append(order)

    guarded = task(app, once, charge)
    defer(app, guarded, {"order": 42})
    work(app, database)
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE procrastinate_jobs RESTART IDENTITY CASCADE")
    defer(app, guarded, {"order": 43}, {"order": 44})
    work(app, database)
    assert runs == [42, 44]
    assert [status for status, _ in jobs(database)] == ["failed", "succeeded"]


def test_a_fingerprint_of_the_context_is_refused(once):
    app = App(connector=InMemoryConnector())

    @app.task(pass_context=True)
    def charge(context, order):
        pass

    with pytest.raises(ValueError, match="context"):
        exactly(once, key="order", fingerprint=True)(charge)


def test_two_jobs_of_one_enqueue_take_effect_once(app, database, once):
    runs = []

    def charge(order):
        runs.append(order)

    guarded = task(app, once, charge)
    queue = ProcrastinateJobs(guarded)
    for key in ("a", "a", "b"):
        queue.put(key, {"order": 1}, {})
    assert jobs(database) == [("todo", 0)] * 2  # the second one of a key that waits is the first one
    queue.close()
    work(app, database)
    queue.put("a", {"order": 1}, {})  # as after a lost reply, when the first one has run
    queue.close()
    work(app, database)
    assert jobs(database) == [("succeeded", 1)] * 3
    assert runs == [1, 1]
