"""The drivers of `transactions.py`: for each, an effect's own transaction, and the same with a record."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import asyncmy
import asyncpg
import psycopg
import psycopg2
import pymysql
import sqlalchemy
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onceward import Once
from stores.mysql_hands import django_on_mysql, place_of
from stores.postgres_hands import django_connection

INSERT = "INSERT INTO payments VALUES ('order-42', 1250)"
_NUMBERS = count()
Act = Callable[[], None]


class Case:
    """One driver: its bare transaction, the same with a record, and how to run both."""

    def __init__(self, bare: Act, once: Act, close: Act) -> None:
        self.bare, self.once, self.close = bare, once, close


Cases = dict[str, Callable[[], Case]]


def key() -> str:
    """Return a new key."""
    return f"k{next(_NUMBERS)}"


class Drivers:
    """What makes the cases of one ledger.

    Args:
        once: it.
        url: of its database.
    """

    def __init__(self, once: Once, url: str) -> None:
        self._once, self._url = once, url
        self._runner = asyncio.Runner()

    def of_postgres(self) -> Cases:
        """Return the cases of PostgreSQL."""
        url = self._url.replace("postgresql:", "postgresql+{}:")
        return {
            "psycopg": self._psycopg,
            "psycopg2": self._psycopg2,
            "SQLAlchemy Connection": lambda: self._sqlalchemy(lambda engine: engine.connect(), url.format("psycopg")),
            "SQLAlchemy Session": lambda: self._sqlalchemy(Session, url.format("psycopg")),
            "Django": lambda: self._django(django_connection),
            "psycopg, async": self._psycopg_async,
            "asyncpg": self._asyncpg,
            "AsyncSession, psycopg": lambda: self._sqlalchemy_async(url.format("psycopg")),
            "AsyncSession, asyncpg": lambda: self._sqlalchemy_async(url.format("asyncpg")),
        }

    def of_mariadb(self) -> Cases:
        """Return the cases of MariaDB."""
        url = self._url.replace("mysql:", "mysql+{}:")
        return {
            "PyMySQL": self._pymysql,
            "PyMySQL, SQLAlchemy Session": lambda: self._sqlalchemy(Session, url.format("pymysql")),
            "PyMySQL, Django": lambda: self._django(django_on_mysql),
            "asyncmy": self._asyncmy,
            "asyncmy, AsyncSession": lambda: self._sqlalchemy_async(url.format("asyncmy")),
        }

    # --- connections that block -----------------------------------------------------------------------------------

    def _psycopg(self) -> Case:
        connection = psycopg.connect(self._url, autocommit=True)

        def bare() -> None:
            with connection.transaction():
                connection.execute(INSERT)

        def both() -> None:
            with self._once.transaction(key(), connection):
                connection.execute(INSERT)

        return Case(bare, both, connection.close)

    def _psycopg2(self) -> Case:
        connection = psycopg2.connect(self._url)

        def bare() -> None:
            with connection:
                _executed(connection)

        def both() -> None:
            with self._once.transaction(key(), connection):
                _executed(connection)

        return Case(bare, both, connection.close)

    def _pymysql(self) -> Case:
        connection = pymysql.connect(**place_of(self._url), autocommit=True)

        def bare() -> None:
            connection.begin()
            _executed(connection)
            connection.commit()

        def both() -> None:
            with self._once.transaction(key(), connection):
                _executed(connection)

        return Case(bare, both, connection.close)

    def _sqlalchemy(self, make: Callable[[sqlalchemy.Engine], Any], url: str) -> Case:
        engine = sqlalchemy.create_engine(url)
        connection, insert = make(engine), sqlalchemy.text(INSERT)

        def bare() -> None:
            with connection.begin():
                connection.execute(insert)

        def both() -> None:
            with self._once.transaction(key(), connection):
                connection.execute(insert)

        def close() -> None:
            connection.close()
            engine.dispose()

        return Case(bare, both, close)

    def _django(self, make: Callable[[str, str], Any]) -> Case:
        connection = make(f"bench{next(_NUMBERS)}", self._url)

        def bare() -> None:
            with transaction.atomic(using=connection.alias):
                _executed(connection)

        def both() -> None:
            with self._once.transaction(key(), connection):
                _executed(connection)

        return Case(bare, both, connection.close)

    # --- connections of coroutines --------------------------------------------------------------------------------

    def _awaited(
        self, bare: Callable[[], Awaitable[None]], both: Callable[[], Awaitable[None]], close: Callable[[], Any]
    ) -> Case:
        run = self._runner.get_loop().run_until_complete
        return Case(lambda: run(bare()), lambda: run(both()), lambda: self._runner.run(close()))

    def _psycopg_async(self) -> Case:
        connection = self._runner.run(psycopg.AsyncConnection.connect(self._url, autocommit=True))

        async def bare() -> None:
            async with connection.transaction():
                await connection.execute(INSERT)

        async def both() -> None:
            async with self._once.transaction(key(), connection):
                await connection.execute(INSERT)

        return self._awaited(bare, both, connection.close)

    def _asyncpg(self) -> Case:
        connection = self._runner.run(_made(asyncpg.connect(self._url)))

        async def bare() -> None:
            async with connection.transaction():
                await connection.execute(INSERT)

        async def both() -> None:
            async with self._once.transaction(key(), connection):
                await connection.execute(INSERT)

        return self._awaited(bare, both, connection.close)

    def _asyncmy(self) -> Case:
        connection = self._runner.run(_made(asyncmy.connect(**place_of(self._url), autocommit=True)))

        async def bare() -> None:
            await connection.begin()
            await _executed_async(connection)
            await connection.commit()

        async def both() -> None:
            async with self._once.transaction(key(), connection):
                await _executed_async(connection)

        return self._awaited(bare, both, connection.ensure_closed)

    def _sqlalchemy_async(self, url: str) -> Case:
        engine = create_async_engine(url)
        session, insert = AsyncSession(engine), sqlalchemy.text(INSERT)

        async def bare() -> None:
            async with session.begin():
                await session.execute(insert)

        async def both() -> None:
            async with self._once.transaction(key(), session):
                await session.execute(insert)

        async def close() -> None:
            await session.close()
            await engine.dispose()

        return self._awaited(bare, both, close)


def _executed(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT)


async def _executed_async(connection: Any) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(INSERT)


async def _made(making: Any) -> Any:
    return await making
