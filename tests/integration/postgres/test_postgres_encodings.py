"""A caller's connection with another encoding is refused before the body runs: its texts would come back altered."""

import asyncio

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy

from onceward import Once

ODD = "?client_encoding=LATIN1"


@pytest.fixture
def once(schema):
    once = Once(schema, name="pay")
    yield once
    once.close()


def refused(once, connection):
    ran = []
    with pytest.raises(ValueError, match="client_encoding is LATIN1"), once.transaction("k", connection) as transaction:
        ran.append(transaction)
    assert ran == []


def test_a_connection_of_psycopg(once, postgres):
    for autocommit in (False, True):
        with psycopg.connect(postgres.url + ODD, autocommit=autocommit) as connection:
            refused(once, connection)
            connection.execute("SET client_encoding TO UTF8")
            connection.rollback() if not autocommit else None


def test_a_connection_of_psycopg2(once, postgres):
    connection = psycopg2.connect(postgres.url)
    connection.set_client_encoding("LATIN1")
    refused(once, connection)
    connection.close()


def test_connections_of_sqlalchemy(once, postgres):
    for driver in ("psycopg", "psycopg2"):
        engine = sqlalchemy.create_engine(postgres.url.replace("postgresql", f"postgresql+{driver}") + ODD)
        with engine.connect() as connection:
            refused(once, connection)
        engine.dispose()


def test_asynchronous_connections(once, postgres):
    async def use():
        async with await psycopg.AsyncConnection.connect(postgres.url + ODD) as connection:
            with pytest.raises(ValueError, match="LATIN1"):
                async with once.transaction("k", connection):
                    pytest.fail("it ran")
        connection = await asyncpg.connect(postgres.url)
        await connection.execute("SET client_encoding TO LATIN1")
        with pytest.raises(ValueError, match="LATIN1"):
            async with once.transaction("k", connection):
                pytest.fail("it ran")
        await connection.close()

    asyncio.run(use())


def test_the_key_is_free_after_a_refusal_and_texts_come_back_as_they_were(once, postgres):
    with psycopg.connect(postgres.url + ODD, autocommit=True) as connection:
        refused(once, connection)
        connection.execute("SET client_encoding TO UTF8")
        with once.transaction("k", connection) as transaction:
            transaction.result = {"name": "José €"}
    assert once.run("k", dict) == {"name": "José €"}


@pytest.mark.parametrize("local", ["", "LOCAL "])
def test_an_encoding_that_the_body_sets_rolls_back(once, postgres, local):
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE effects (name text)")
        with (
            pytest.raises(ValueError, match="client_encoding is LATIN1"),
            once.transaction("k", connection) as transaction,
        ):
            connection.execute("INSERT INTO effects VALUES ('Jose')")
            connection.execute(f"SET {local}client_encoding TO LATIN1")
            transaction.result = {"name": "José"}
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (0,)
    assert once.run("k", lambda: "ran again") == "ran again"


def test_an_encoding_that_the_body_of_asyncpg_sets_rolls_back(once, postgres):
    async def use():
        connection = await asyncpg.connect(postgres.url)
        with pytest.raises(ValueError, match="LATIN1"):
            async with once.transaction("k", connection) as transaction:
                await connection.execute("SET LOCAL client_encoding TO LATIN1")
                transaction.result = {"name": "José"}
        await connection.close()

    asyncio.run(use())
    assert once.run("k", lambda: "ran again") == "ran again"
