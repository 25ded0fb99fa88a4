"""Connections that cannot hold a transaction of ours are refused before anything runs, and others keep what they had."""

import threading

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceward import Completed, Once, OncewardError, StoreError
from onceward.core.record import Record
from onceward.stores import open_store
from onceward.stores.postgres.statements import READ
from stores.postgres_hands import Alchemy, AlchemySession, django_connection


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


def refuses(once, connection, match):
    with pytest.raises(ValueError, match=match), once.transaction("k", connection):
        pytest.fail("it ran")


def records(once):
    return [(record.status, record.attempts) for record, _ in once.ledger.records()]


# --- psycopg ------------------------------------------------------------------------------------------------------


def test_a_psycopg_connection_that_is_not_idle_is_refused(once, plain, table, effects):
    plain.execute(f"INSERT INTO {table} VALUES ('mine')")
    refuses(once, plain, "in a transaction already")
    plain.commit()  # it is as it was
    assert effects() == ["mine"]


def test_a_psycopg_connection_in_a_pipeline_is_refused(once, postgres):
    with psycopg.connect(postgres.url, autocommit=True) as connection, connection.pipeline():
        refuses(once, connection, "pipeline")


def test_psycopg_refuses_commit_within_the_body_and_can_again_after_it(once, plain, table, effects):
    for end in (plain.commit, plain.rollback):
        with pytest.raises(psycopg.ProgrammingError), once.transaction("k", plain):
            plain.execute(f"INSERT INTO {table} VALUES ('effect')")
            end()
        assert effects() == []
    plain.execute(f"INSERT INTO {table} VALUES ('mine')")
    plain.commit()
    assert effects() == ["mine"]
    assert records(once) == [("RELEASED", 2)]


def test_the_callers_own_settings_last(once, plain, table):
    plain.execute("SET lock_timeout = '7s'")
    plain.commit()
    for _ in range(2):  # the second finds the record
        try:
            with once.transaction("k", plain):
                assert plain.execute("SHOW lock_timeout").fetchone() == ("7s",)
        except Completed:
            pass
    assert plain.execute("SHOW lock_timeout").fetchone() == ("7s",)


def test_the_callers_own_settings_last_through_a_retry(once, plain):
    plain.execute("SET lock_timeout = '7s'")
    plain.commit()
    with pytest.raises(ZeroDivisionError), once.transaction("k", plain):
        raise ZeroDivisionError
    with once.transaction("k", plain) as transaction:
        assert transaction.claim.attempt == 2
        assert plain.execute("SHOW lock_timeout").fetchone() == ("7s",)
        plain.execute("SET LOCAL lock_timeout = '3s'")
    assert plain.execute("SHOW lock_timeout").fetchone() == ("7s",)


def test_a_claim_and_its_completion_are_told_as_they_are_kept(once, plain):
    def kept():
        return Record(*plain.execute(f"SELECT {READ} FROM {once.store.names.table} a").fetchone())

    with once.transaction("k", plain) as transaction:
        claim = transaction.claim
        assert claim.record == kept()
        transaction.result = "made"
    assert claim.record == kept()
    assert claim.record.result == '"made"'


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


def test_a_serialization_failure_of_the_body_counts_as_its_failure(once, postgres, plain, table, effects):
    postgres.sql(f"INSERT INTO {table} VALUES ('start')", database="test")
    plain.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(psycopg.errors.SerializationFailure), once.transaction("k", plain):
        plain.execute(f"SELECT * FROM {table}")
        postgres.sql(f"UPDATE {table} SET value = 'theirs'", database="test")
        plain.execute(f"UPDATE {table} SET value = 'mine'")
    assert records(once) == [("RELEASED", 1)]
    with once.transaction("k", plain):
        plain.execute(f"UPDATE {table} SET value = 'mine'")
    assert (effects(), records(once)) == (["mine"], [("COMPLETED", 2)])


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


def test_a_deadlock_counts_as_the_bodys_failure(once, postgres, plain, table):
    postgres.sql(f"INSERT INTO {table} VALUES ('a'), ('b')", database="test")
    change = f"UPDATE {table} SET value = value WHERE value = %s"
    with psycopg.connect(postgres.url) as other:
        other.execute("SET deadlock_timeout = '10s'")
        plain.execute("SET deadlock_timeout = '50ms'")
        plain.commit()
        other.execute(change, ["b"])
        waiting = threading.Thread(target=other.execute, args=(change, ["a"]))
        with pytest.raises(psycopg.errors.DeadlockDetected), once.transaction("k", plain):
            plain.execute(change, ["a"])
            waiting.start()
            plain.execute("SELECT pg_sleep(1)")
            plain.execute(change, ["b"])
        waiting.join()
        other.rollback()
    assert records(once) == [("RELEASED", 1)]


# --- psycopg2 -----------------------------------------------------------------------------------------------------


@pytest.fixture
def old(postgres, table):
    """A connection of psycopg2."""
    connection = psycopg2.connect(postgres.url)
    yield connection
    connection.close()


def test_a_psycopg2_connection_that_cannot_begin_is_refused(once, postgres, old, table, effects):
    with old.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES ('mine')")
    refuses(once, old, "in a transaction already")
    old.commit()
    assert effects() == ["mine"]
    old.close()
    refuses(once, old, "closed")
    waiting = psycopg2.connect(postgres.url, async_=1)
    psycopg2.extras.wait_select(waiting)
    refuses(once, waiting, "asynchronous")
    waiting.close()
    assert records(once) == []


@pytest.mark.parametrize("end", ["commit", "rollback", "with"])
def test_a_psycopg2_body_that_ends_its_transaction_is_parked(once, old, table, effects, end):
    with pytest.raises(OncewardError, match="committed or rolled back"), once.transaction("k", old):
        with old.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ('effect')")
        if end == "with":
            with old:  # which commits
                pass
        else:
            getattr(old, end)()
        with old.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ('more')")
    assert "more" not in effects()
    assert [state for state, _ in records(once)] == ["PARKED"]


# --- SQLAlchemy ---------------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.fixture
def orders(engine, table):
    """A table of orders of this test's own."""
    bound = engine.execution_options(schema_translate_map={None: table})
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {table}"))
    Base.metadata.create_all(bound)
    return bound


def test_a_connection_in_a_transaction_is_refused_and_left_in_it(once, engine, table, effects):
    with engine.connect() as connection:
        connection.execute(text(f"INSERT INTO {table} VALUES ('mine')"))
        refuses(once, connection, "in a transaction already")
        connection.commit()
    assert effects() == ["mine"]


def test_a_session_that_has_begun_by_itself_commits_all_it_did(once, orders):
    with Session(orders) as session:
        session.add(Order(number=1, total=10))
        assert session.get(Order, 2) is None  # it has begun, and flushed
        with once.transaction("k", session):
            session.add(Order(number=2, total=20))
        with Session(orders) as other:
            assert [order.number for order in other.query(Order).order_by(Order.number)] == [1, 2]


def test_a_result_is_encoded_after_the_flush_and_before_the_commit(once, orders):
    """The commit expires the session's objects."""
    recorded = []
    with Session(orders) as session:
        with once.transaction("k", session) as tx:
            session.add(Order(number=1, total=10))
            event.listen(session, "after_flush", lambda *_: recorded.append(tx.claim.record.status))
            event.listen(session, "before_commit", lambda _: recorded.append(tx.claim.record.result))
            tx.result = {"total": 10}
    assert recorded[0] == "IN_PROGRESS"
    assert "10" in recorded[1]


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


def test_what_a_hook_adds_before_the_commit_commits_too(once, orders):
    with Session(orders) as session:
        event.listen(session, "before_commit", lambda _: session.add(Order(number=2, total=20)), once=True)
        with once.transaction("k", session):
            session.add(Order(number=1, total=10))
        with Session(orders) as other:
            assert [order.number for order in other.query(Order).order_by(Order.number)] == [1, 2]
    assert records(once) == [("COMPLETED", 1)]


def test_a_hook_that_fails_before_the_commit_undoes_both(once, orders):
    with Session(orders) as session:
        event.listen(session, "before_commit", lambda _: 1 / 0, once=True)
        with pytest.raises(ZeroDivisionError), once.transaction("k", session):
            session.add(Order(number=1, total=10))
        assert not session.in_transaction()
        assert session.query(Order).count() == 0
    assert records(once) == [("RELEASED", 1)]


def test_a_hook_that_swallows_an_error_before_the_commit_commits_nothing(once, orders):
    """PostgreSQL answers the COMMIT of a failed transaction with a ROLLBACK that no driver raises."""

    def hook(session):
        with pytest.raises(ProgrammingError):
            session.connection().exec_driver_sql("SELECT nothing")

    with Session(orders) as session:
        event.listen(session, "before_commit", hook, once=True)
        with pytest.raises(StoreError), once.transaction("k", session):
            session.add(Order(number=1, total=10))
        assert session.query(Order).count() == 0
    assert records(once) == [("RELEASED", 1)]


def test_a_hook_that_rolls_back_before_the_commit_does_not_report_success(once, orders):
    with Session(orders) as session:
        event.listen(session, "before_commit", lambda one: one.connection().exec_driver_sql("ROLLBACK"), once=True)
        with pytest.raises(StoreError), once.transaction("k", session):
            session.add(Order(number=1, total=10))
        assert session.query(Order).count() == 0
    assert records(once) == [("RELEASED", 1)]


def test_a_flush_may_take_longer_than_a_statement_of_the_ledger(schema, once, orders):
    once.run("made", int)  # its tables, which can take longer
    brief = Once(open_store(f"{schema}&timeout=2"), name="n")
    with Session(orders) as session:
        event.listen(session, "before_flush", lambda *_: session.connection().exec_driver_sql("SELECT pg_sleep(3)"))
        with brief.transaction("k", session):
            session.add(Order(number=1, total=10))
        assert session.query(Order).count() == 1
    brief.close()


def test_what_a_flush_raises_is_the_bodys_own_failure(once, orders):
    from sqlalchemy.exc import IntegrityError

    with Session(orders) as session:
        with pytest.raises(IntegrityError), once.transaction("k", session):
            session.add_all([Order(number=1, total=10), Order(number=1, total=20)])
        assert not session.in_transaction()
    assert records(once) == [("RELEASED", 1)]


def test_a_session_that_was_begun_explicitly_or_nested_is_refused(once, engine):
    with Session(engine) as session, session.begin():
        refuses(once, session, "in a transaction already")
    with Session(engine) as session:
        session.begin_nested()
        refuses(once, session, "in a transaction already")


def test_a_session_of_two_databases_is_refused(once, engine, postgres):
    other = create_engine(Alchemy(postgres.url.replace("/test", "/postgres"), "").address(None))
    with Session(engine, binds={Order: other}) as session:
        refuses(once, session, "2 databases")
    other.dispose()


def test_a_session_that_uses_a_second_database_is_rolled_back(once, engine, postgres, table, effects):
    other = create_engine(Alchemy(postgres.url.replace("/test", "/postgres"), "").address(None))
    with Session(engine) as session:
        with pytest.raises(StoreError, match="second database"), once.transaction("k", session):
            session.execute(text(f"INSERT INTO {table} VALUES ('effect')"))
            session.execute(text("SELECT 1"), bind_arguments={"bind": other})
    other.dispose()
    assert (effects(), records(once)) == ([], [("RELEASED", 1)])


def test_a_session_within_somebodys_transaction_is_refused(once, engine):
    with engine.connect() as connection, connection.begin(), Session(bind=connection) as session:
        refuses(once, session, "bound to a connection in a transaction")


def test_a_session_in_two_phases_is_refused(once, engine):
    with Session(engine, twophase=True) as session:
        refuses(once, session, "two phases")


def test_a_session_that_has_read_at_a_stricter_level_is_refused(once, engine):
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        session.execute(text("SELECT 1"))
        refuses(once, session, "REPEATABLE READ")
        session.rollback()
        with once.transaction("k", session):
            pass
    assert records(once) == [("COMPLETED", 1)]


def test_an_engine_that_commits_by_itself_is_refused(once, engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        refuses(once, connection, "AUTOCOMMIT")
    assert records(once) == []


def test_an_engine_of_another_database_system_is_refused(once):
    with create_engine("sqlite://").connect() as connection:
        refuses(once, connection, "give an engine of postgresql")


# --- Django -------------------------------------------------------------------------------------------------------


@pytest.fixture
def django(postgres, table):
    made = django_connection(table, postgres.url)
    yield made
    made.close()


def test_a_nested_atomic_is_refused(once, django):
    from django.db import transaction

    with transaction.atomic(using=django.alias):
        refuses(once, django, "would be a savepoint")
    assert records(once) == []


def test_a_body_that_asks_django_for_a_rollback_has_failed(once, django, table, effects):
    from django.db import transaction

    with pytest.raises(StoreError, match="set_rollback"), once.transaction("k", django):
        with django.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ('effect')")
        transaction.set_rollback(True, using=django.alias)
    assert (effects(), records(once)) == ([], [("RELEASED", 1)])


def test_a_hook_that_fails_after_the_commit_undoes_nothing(once, django, table, effects):
    from django.db import transaction

    with pytest.raises(ZeroDivisionError), once.transaction("k", django):
        with django.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ('effect')")
        transaction.on_commit(lambda: 1 / 0, using=django.alias)
    assert (effects(), records(once)) == (["effect"], [("COMPLETED", 1)])


def test_another_database_of_djangos_is_refused(once):
    from django.db import connections

    from web import django_site  # noqa: F401 - its default database is SQLite's

    refuses(once, connections["default"], "is not PostgreSQL")


# --- whatever else ------------------------------------------------------------------------------------------------


def test_something_else_is_told_what_to_give(once):
    with (
        pytest.raises(TypeError, match="give a connection of psycopg, psycopg2 or asyncpg"),
        once.transaction("k", object()),
    ):
        pytest.fail("it ran")
