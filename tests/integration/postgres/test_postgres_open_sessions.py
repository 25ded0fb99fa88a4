"""A guarded call while a transaction of SQLAlchemy is open around it: its key completes, and the effect may be undone."""

import asyncio

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

OPEN = "COMPLETED, but a (Session|transaction) of SQLAlchemy.*transactions.md"
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def engine(postgres):
    made = create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    yield made
    made.dispose()


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


def test_an_asynchronous_session_counts_in_its_own_task_only(once, postgres, insert):
    async def charge(order: str, session: AsyncSession | None) -> None:
        if session is not None:
            await session.execute(insert)

    guarded = once(key="order", name="charge")(charge)

    async def main():
        engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
        async with AsyncSession(engine) as session:
            await session.execute(text("SELECT 1"))
            await asyncio.create_task(guarded("another", None))
            with pytest.warns(UserWarning, match=OPEN):
                await guarded("a", session)
        await engine.dispose()

    asyncio.run(main())
