"""Transactions whose connections and replies are lost, that are cut short, or whose server freezes: both effect and record, or neither."""

import asyncio
import contextlib
import os
import signal
import threading

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from fixtures import closing_fixture
from onceward import Completed, StoreError
from onceward.stores.capabilities import Apart
from onceward.stores.postgres.inside import TRY_LOCK
from servers.postgres import PgBouncer, Postgres
from servers.wires import Fault, Wire
from stores.cut_cases import *  # noqa: F403 - its tests run here
from stores.lost_cases import *  # noqa: F403 - its tests run here
from stores.lost_cases import of_two_seconds
from stores.postgres_hands import HANDS


@pytest.mark.parametrize("statement", ["SET LOCAL idle_in_transaction_session_timeout = 100", "SELECT 1 / 0"])
async def test_a_session_that_is_killed_or_an_error_that_the_body_swallows_rolls_everything_back(
    once, hand, effects, statement
):
    async with hand.connection() as connection:
        with pytest.raises(StoreError):
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                with contextlib.suppress(Exception):
                    await hand.sql(connection, statement)
                    await asyncio.sleep(0.5)
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])


class TimeLimit(Exception):
    """Raised by a signal handler, as the time limits of task queues are."""


def test_a_time_limit_in_a_statement_frees_the_key(once, postgres, table, effects):
    def ring(*_):
        raise TimeLimit

    connection = psycopg.connect(postgres.url, autocommit=True)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeLimit), once.transaction("k", connection):
            connection.execute(f"INSERT INTO {table} VALUES ('effect')")
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            connection.execute("SELECT pg_sleep(60)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ((record, _),) = once.ledger.records()
    assert (effects(), record.status, record.error) == ([], "RELEASED", "TimeLimit")
    connection.close()


async def test_a_lost_begin_is_told_and_nothing_was_claimed(once, hand, effects, postgres):
    wire = Wire(postgres.port)
    try:
        async with hand.connection(postgres.url.replace(f":{postgres.port}", f":{wire.port}")) as connection:
            wire.rule = lambda asked: Fault(lose_request=True) if b"BEGIN" in asked.content else None
            with pytest.raises(StoreError, match="connection"):
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
    finally:
        wire.close()
    assert (effects(), hand.status(once)) == ([], [])


def test_a_session_that_is_lost_while_its_place_is_checked_is_none_to_another_database(once, postgres, monkeypatch):
    connection = psycopg.connect(postgres.url, autocommit=True)

    def apart(request):
        if request.text == TRY_LOCK:
            postgres.sql("SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)
        return Apart(request)

    monkeypatch.setattr("onceward.stores.postgres.session.Apart", apart)
    with pytest.raises(StoreError), once.transaction("k", connection):
        pytest.fail("it ran")


async def test_it_works_behind_a_pooler_of_transactions(once, hand, postgres, effects):
    """Each transaction can be on another session of the server, also one that a rolled-back transaction has used."""
    bouncer = PgBouncer(postgres)
    try:
        async with hand.connection(bouncer.url) as first, hand.connection(bouncer.url) as second:
            # More often, psycopg would prepare what it runs, which old versions of PgBouncer do not take.
            for key, connection in enumerate((first, second, first, second)):
                with pytest.raises(ZeroDivisionError):
                    async with hand.within(once.transaction(key, connection)):
                        await hand.act(connection, "undone")
                        raise ZeroDivisionError
                async with hand.within(once.transaction(key, connection)):
                    await hand.act(connection, str(key))
                with pytest.raises(Completed):
                    async with hand.within(once.transaction(key, connection)):
                        pytest.fail("it ran")
    finally:
        bouncer.stop()
    assert sorted(effects()) == ["0", "1", "2", "3"]
    assert {status for status, _ in hand.status(once)} == {"COMPLETED"}


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("kind", [name for name in HANDS if "Connection" in name or "Session" in name])
async def test_a_hook_of_an_engine_that_swallows_an_error_at_the_commit_reports_no_success(
    once, postgres, table, effects, kind, fails
):
    hand = HANDS[kind](postgres.url, table)

    def hook(connection):
        with contextlib.suppress(sqlalchemy.exc.DBAPIError):
            connection.exec_driver_sql("SELECT nothing" if fails else "SELECT 1")

    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", hook)
    try:
        async with hand.connection() as connection:
            with pytest.raises(StoreError, match="hook") if fails else contextlib.nullcontext():
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "commit", hook)
    assert (effects(), hand.status(once)) == (([], [("RELEASED", 1)]) if fails else (["effect"], [("COMPLETED", 1)]))


def test_a_later_commit_on_the_connection_of_a_session_is_its_callers_own(once, postgres):
    engine = sqlalchemy.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        with Session(connection) as session, once.transaction("k", session):
            pass
        connection.begin().commit()  # of nothing, so the driver is in no transaction
    engine.dispose()


hasty = closing_fixture(lambda schema: of_two_seconds(schema, f"{schema}&timeout=2"))


@pytest.fixture
def freeze(postgres):
    """Freeze the server's process of a connection; it goes on much later, so that a test without a limit fails."""
    timers = []

    def frozen(name):
        ((pid,),) = postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = %s", name)
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(60, thaw, [pid])
        timer.start()
        timers.append((timer, pid))

    yield frozen
    for timer, pid in timers:
        timer.cancel()
        thaw(pid)


def thaw(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.sampled(hand=1)
@pytest.mark.parametrize("postgres", [Postgres], indirect=True, ids=["15"])
@pytest.mark.parametrize("at", ["commit", "claim"])
async def test_a_transaction_on_a_frozen_server_ends_in_time(hasty, hand, freeze, at):
    async with hand.connection() as connection:
        async with hand.within(hasty.transaction("before", connection)):
            await hand.sql(connection, f"SET application_name = '{hand.table}'")
        if at == "claim":
            freeze(hand.table)
        with pytest.raises(StoreError, match="not answered in time" if at == "claim" else None):
            async with hand.within(hasty.transaction("k", connection)):
                assert at == "commit", "nothing was claimed"
                freeze(hand.table)


pytestmark = pytest.mark.sampled(waiting=1, blocking=1)


@pytest.fixture(params=[name for name, kind in HANDS.items() if kind.awaited])
def waiting(request, postgres, table):
    return HANDS[request.param](postgres.url, table)


@pytest.fixture(params=["psycopg", "psycopg2", "Session", "Django"])
def blocking(request, postgres, table):
    return HANDS[request.param](postgres.url, table)


def test_a_transaction_adds_two_statements(once, postgres, table, tmp_path):
    def asked(path):
        """Return the first word of each statement in libpq's trace."""
        told = [line.split("\t") for line in path.read_text().splitlines()]
        sent = [line[4].replace('""', "").partition('"')[2] for line in told if line[3] in {"Query", "Parse"}]
        return [text.split()[0].strip('"') for text in sent]

    def act(connection):
        with once.transaction("k", connection):
            connection.execute(f"INSERT INTO {table} VALUES ('effect')")

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        with once.transaction("first", connection):  # whose connection is looked at
            pass
        seen = []
        for turn in ("first", "duplicate"):
            path = tmp_path / turn
            with path.open("w") as trace:
                connection.pgconn.trace(trace.fileno())
                with contextlib.suppress(Completed):
                    act(connection)
                connection.pgconn.untrace()
            seen.append(asked(path))
    assert seen == [["BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT"], ["BEGIN", "INSERT", "WITH", "ROLLBACK"]]
