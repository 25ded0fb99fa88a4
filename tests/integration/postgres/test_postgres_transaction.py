"""Effects commit together with their record, step and messages; what cannot hold a transaction of ours is refused, and calls in an open one warn."""

import asyncio
import contextlib
import threading

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from django.db import transaction
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceward import Completed, Once, OncewardError, StepMade, StoreError, current
from onceward.outbox import drain
from stores.postgres_hands import HANDS, Alchemy, AlchemySession, records
from stores.transaction_cases import *  # noqa: F403 - its tests run here
from stores.transaction_cases import Failure, unsent


@pytest.fixture
def plain(postgres, table):
    """A connection of psycopg without autocommit."""
    with psycopg.connect(postgres.url) as connection:
        yield connection


@pytest.fixture
def engine(postgres, table):
    made = Alchemy(postgres.url, table).engine()
    yield made
    made.dispose()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


class Refused:
    """Connections that will not do, each with the words of its refusal."""

    def __init__(self, url, engine, django, stack):
        self.url, self.engine, self.django, self.enter = url, engine, django, stack.enter_context

    def psycopg_in_a_pipeline(self):
        connection = self.enter(psycopg.connect(self.url, autocommit=True))
        self.enter(connection.pipeline())
        return connection, "pipeline"

    def psycopg2_that_is_closed(self):
        connection = psycopg2.connect(self.url)
        connection.close()
        return connection, "closed"

    def a_session_that_was_begun(self):
        session = self.enter(Session(self.engine))
        self.enter(session.begin())
        return session, "in a transaction already"

    def a_session_within_somebodys_transaction(self):
        connection = self.enter(self.engine.connect())
        self.enter(connection.begin())
        return self.enter(Session(bind=connection)), "bound to a connection in a transaction"

    def a_session_of_two_databases(self):
        other = create_engine(Alchemy(self.url.replace("/test", "/postgres"), "").address(None))
        return self.enter(Session(self.engine, binds={Order: other})), "2 databases"

    def an_engine_that_commits_by_itself(self):
        return self.enter(self.engine.connect()).execution_options(isolation_level="AUTOCOMMIT"), "AUTOCOMMIT"

    def an_engine_of_another_system(self):
        return self.enter(create_engine("sqlite://").connect()), "give an engine of postgresql"

    def django_in_a_block(self):
        self.enter(transaction.atomic(using=self.django.alias))
        return self.django, "would be a savepoint"

    def something_else(self):
        return object(), "give a connection of psycopg, psycopg2 or asyncpg"


@pytest.mark.parametrize("kind", [name for name in vars(Refused) if not name.startswith("_")])
def test_a_connection_that_cannot_hold_it_is_refused(once, postgres, engine, django, kind):
    with contextlib.ExitStack() as stack:
        connection, match = getattr(Refused(postgres.url, engine, django, stack), kind)()
        with pytest.raises((ValueError, TypeError), match=match), once.transaction("k", connection):
            pytest.fail("it ran")
    assert records(once) == []


@pytest.mark.parametrize("library", ["psycopg", "psycopg2", "Connection"])
def test_a_connection_in_a_transaction_is_refused_and_left_in_it(once, postgres, engine, table, effects, library):
    makers = {"psycopg": psycopg.connect, "psycopg2": psycopg2.connect, "Connection": lambda _: engine.connect()}
    with contextlib.closing(makers[library](postgres.url)) as connection:
        statement = f"INSERT INTO {table} VALUES ('mine')"
        acts = connection.cursor() if library == "psycopg2" else connection
        acts.execute(text(statement) if library == "Connection" else statement)
        with pytest.raises(ValueError, match="in a transaction already"), once.transaction("k", connection):
            pytest.fail("it ran")
        connection.commit()
    assert (effects(), records(once)) == (["mine"], [])


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_duplicate_in_a_stricter_transaction_sees_what_was_committed(once, postgres, plain, table, effects, level):
    """It waits for the first, cannot see it in its own snapshot, and begins anew."""
    entered, answers = threading.Event(), []

    def second():
        with psycopg.connect(postgres.url) as connection:
            connection.isolation_level = level
            entered.wait(60)
            try:
                with once.transaction("k", connection):
                    answers.append("it ran")
            except Completed as done:
                answers.append(done.result)

    thread = threading.Thread(target=second)
    thread.start()
    plain.isolation_level = level
    with once.transaction("k", plain) as tx:
        entered.set()
        plain.execute(f"INSERT INTO {table} VALUES ('effect')")
        plain.execute("SELECT pg_sleep(0.5)")
        tx.result = "first"
    thread.join()
    assert (answers, effects()) == (["first"], ["effect"])


def test_a_serialization_failure_of_the_commit_counts_as_a_failure(once, postgres, plain, table, effects):
    """Each reads what the other writes: only the server can tell, at the second COMMIT."""
    postgres.sql(f"INSERT INTO {table} VALUES ('a'), ('b')", database="test")
    plain.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with psycopg.connect(postgres.url) as other:
        other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with pytest.raises(StoreError) as told, once.transaction("k", plain):
            plain.execute(f"SELECT count(*) FROM {table} WHERE value = 'a'")
            plain.execute(f"INSERT INTO {table} VALUES ('b')")
            other.execute(f"SELECT count(*) FROM {table} WHERE value = 'b'")
            other.execute(f"INSERT INTO {table} VALUES ('a')")
            other.commit()
    assert "40001" in str(told.value)
    assert sorted(effects()) == ["a", "a", "b"]
    assert records(once) == [("RELEASED", 1)]


@pytest.fixture
def orders(engine, table):
    """A table of orders of this test's own."""
    bound = engine.execution_options(schema_translate_map={None: table})
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {table}"))
    Base.metadata.create_all(bound)
    return bound


def test_a_session_that_has_begun_by_itself_commits_all_it_did_and_what_its_hooks_add(once, orders):
    with Session(orders) as session:
        session.add(Order(number=1, total=10))
        assert session.get(Order, 2) is None  # it has begun, and flushed
        event.listen(session, "before_commit", lambda _: session.add(Order(number=3, total=30)), once=True)
        with once.transaction("k", session):
            session.add(Order(number=2, total=20))
        with Session(orders) as other:
            assert [order.number for order in other.query(Order).order_by(Order.number)] == [1, 2, 3]
    assert records(once) == [("COMPLETED", 1)]


@pytest.mark.parametrize("kind", [Alchemy, AlchemySession])
def test_a_connection_that_goes_back_to_its_pool_in_the_body_is_left_alone(once, engine, table, effects, kind):
    """Another thread can have it then, in a transaction of its own."""
    with Session(engine) if kind is AlchemySession else engine.connect() as mine:
        with pytest.raises(OncewardError, match="committed or rolled back"), once.transaction("k", mine):
            mine.rollback()
            if kind is Alchemy:
                mine.close()
            theirs = engine.connect()
            theirs.execute(text(f"INSERT INTO {table} VALUES ('theirs')"))
        theirs.commit()
        theirs.close()
    assert effects() == ["theirs"]
    assert [state for state, _ in records(once)] == ["PARKED"]


def fails(session):
    raise ZeroDivisionError


def swallows(session):  # PostgreSQL answers the COMMIT of a failed transaction with a ROLLBACK that no driver raises
    with pytest.raises(ProgrammingError):
        session.connection().exec_driver_sql("SELECT nothing")


def rolls_back(session):
    session.connection().exec_driver_sql("ROLLBACK")


@pytest.mark.parametrize(
    ("hook", "error"), [(fails, ZeroDivisionError), (swallows, StoreError), (rolls_back, StoreError)]
)
def test_a_hook_before_the_commit_that_fails_undoes_both(once, orders, hook, error):
    with Session(orders) as session:
        event.listen(session, "before_commit", hook, once=True)
        with pytest.raises(error), once.transaction("k", session):
            session.add(Order(number=1, total=10))
        assert not session.in_transaction()
        assert session.query(Order).count() == 0
    assert records(once) == [("RELEASED", 1)]


def test_a_session_that_uses_a_second_database_is_rolled_back(once, engine, postgres, table, effects):
    other = create_engine(Alchemy(postgres.url.replace("/test", "/postgres"), "").address(None))
    with Session(engine) as session:
        with pytest.raises(StoreError, match="second database"), once.transaction("k", session):
            session.execute(text(f"INSERT INTO {table} VALUES ('effect')"))
            session.execute(text("SELECT 1"), bind_arguments={"bind": other})
    other.dispose()
    assert (effects(), records(once)) == ([], [("RELEASED", 1)])


def test_a_session_that_has_read_at_a_stricter_level_is_refused(once, engine):
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(ValueError, match="REPEATABLE READ"), once.transaction("k", session):
            pytest.fail("it ran")
        session.rollback()
        with once.transaction("k", session):
            pass
    assert records(once) == [("COMPLETED", 1)]


OPEN = "COMPLETED, but a (Session|transaction) of SQLAlchemy.*transactions.md"


@pytest.fixture
def insert(sql, table):
    """A row that needs its parent when it commits, and finds none."""
    sql(f"CREATE TABLE parents_{table} (id text PRIMARY KEY)")
    sql(f"ALTER TABLE {table} ADD FOREIGN KEY (value) REFERENCES parents_{table} DEFERRABLE INITIALLY DEFERRED")
    return text(f"INSERT INTO {table} VALUES ('effect')")


@pytest.mark.parametrize("kind", [Session, "connect"])
def test_a_call_in_an_open_transaction_warns_once_for_a_handler(once, engine, insert, effects, kind):
    with pytest.raises(IntegrityError), kind(engine) if kind is Session else engine.connect() as ours:

        @once(key="order", name="charge")
        def charge(order: str) -> None:
            ours.execute(insert)

        with pytest.warns(UserWarning, match=OPEN):
            charge("a")
        charge("b")
        ours.commit()
    assert (effects(), [record.status for record, _ in once.ledger.records()]) == ([], ["COMPLETED"] * 2)


async def test_an_asynchronous_session_counts_in_its_own_task_only(once, postgres, insert):
    async def charge(order: str, session: AsyncSession | None) -> None:
        if session is not None:
            await session.execute(insert)

    guarded = once(key="order", name="charge")(charge)
    engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    async with AsyncSession(engine) as session:
        await session.execute(text("SELECT 1"))
        await asyncio.create_task(guarded("another", None))
        with pytest.warns(UserWarning, match=OPEN):
            await guarded("a", session)
    await engine.dispose()


async def test_another_database_than_the_ledgers_is_refused(once, hand, postgres, effects, schema):
    second = hand.table.replace("effects", "second")
    postgres.sql(f"CREATE DATABASE {second}")
    twin = Once(schema.replace("/test?", f"/{second}?"))
    twin.run("set up", int)  # the same tables are there
    async with hand.connection(postgres.url.replace("/test", f"/{second}")) as connection:
        with pytest.raises(ValueError, match="another database"):
            async with hand.within(once.transaction("k", connection)):
                pytest.fail("it ran")
        assert hand.is_idle(connection)
    assert [state for state, _ in hand.status(twin)] == ["COMPLETED"]
    twin.close()


async def test_a_constraint_that_fails_at_the_commit_undoes_both_and_sends_nothing(once, hand, postgres, effects, box):
    unique = f"ALTER TABLE {hand.table} ADD CONSTRAINT {hand.table}_one UNIQUE (value) DEFERRABLE INITIALLY DEFERRED"
    postgres.sql(unique, database="test")
    async with hand.connection() as connection:
        with pytest.raises(StoreError, match="23505"):
            async with hand.within(once.transaction("k", connection)):
                current().send(box.address, 1)
                await hand.act(connection)
                await hand.act(connection)
        assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
        assert (hand.is_idle(connection), drain(10), box.bodies, unsent(once)) == (True, 0, [], [None])
        async with hand.within(once.transaction("k", connection)):
            await hand.act(connection)
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


async def test_a_connection_that_has_prepared_our_statements_can_forget_them(once, hand, effects):
    """psycopg does so after each rollback, also to a savepoint."""
    async with hand.connection() as connection:
        for turn in range(9):
            async with hand.within(once.transaction(("plain", turn), connection)):
                await hand.act(connection, "kept")
        for turn in range(9):
            async with hand.within(once.transaction(("savepoint", turn), connection)):
                await hand.act(connection, "kept")
                await hand.savepoint_undone(connection, "dropped")
            with pytest.raises(Failure):
                async with hand.within(once.transaction(("fails", turn), connection)):
                    raise Failure
    assert (effects(), hand.status(once).count(("COMPLETED", 1))) == (["kept"] * 18, 18)


async def test_another_encoding_is_refused_before_the_body_runs(once, hand):
    async with hand.connection() as connection:
        async with hand.own_transaction(connection):
            await hand.sql(connection, "SET client_encoding TO LATIN1")
        with pytest.raises(ValueError, match="client_encoding is LATIN1"):
            async with hand.within(once.transaction("k", connection)):
                pytest.fail("it ran")
    assert hand.status(once) == []


pytestmark = pytest.mark.sampled(hand=2)


@pytest.mark.parametrize("point", range(6))
@pytest.mark.parametrize("name", [name for name, kind in HANDS.items() if kind.awaited])
def test_a_cancellation_at_any_moment_leaves_both_or_neither(once, postgres, table, effects, name, point):
    hand, patience = HANDS[name](postgres.url, table), 60

    async def handle(connection):
        with contextlib.suppress(StepMade):
            async with current().step_transaction("stock", connection):
                await hand.act(connection)
        await asyncio.sleep(patience)

    async def main():
        nonlocal patience
        async with hand.connection() as connection:
            call = asyncio.create_task(once.run_async("k", handle, connection))
            async with hand.connection() as looking:
                await hand.act(looking, "warm")
            await asyncio.sleep(0.003 * point)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert hand.is_idle(connection)
            made = effects().count("effect")
            assert made == sum(record.steps is not None for record, _ in once.ledger.records())
            for record, _ in once.ledger.records():
                once.ledger.park(record.key, live=True)
                once.ledger.unpark(record.key)
            patience = 0
            await once.run_async("k", handle, connection)

    asyncio.run(main())
    assert effects().count("effect") == 1
