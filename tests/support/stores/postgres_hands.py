"""The connections on which an effect can commit with its record, each used in the same few ways by coroutines, also if it blocks."""

import itertools
import os
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psycopg
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

_ALIASES = itertools.count()


def records(once):
    return [(record.status, record.attempts) for record, _ in once.ledger.records()]


class Psycopg:
    awaited = False
    begins = False  # whether any statement begins a transaction
    nap = "SELECT pg_sleep(20)"

    def __init__(self, url, table):
        self.url, self.table = url, table

    @asynccontextmanager
    async def connection(self, url=None):
        connection = psycopg.connect(url or self.url, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()

    @asynccontextmanager
    async def within(self, transaction):
        if self.awaited:
            async with transaction as entered:
                yield entered
        else:
            with transaction as entered:
                yield entered

    @asynccontextmanager
    async def own_transaction(self, connection):
        """The caller's transaction, begun and ended by the library's own means."""
        async with self.within(connection.transaction()):
            yield

    async def sql(self, connection, statement):
        connection.execute(statement)

    async def act(self, connection, value="effect"):
        await self.sql(connection, f"INSERT INTO {self.table} VALUES ('{value}')")

    async def savepoint_undone(self, connection, value):
        await self.sql(connection, "SAVEPOINT mine")
        await self.act(connection, value)
        await self.sql(connection, "ROLLBACK TO mine")

    def is_idle(self, connection):
        return connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    status = staticmethod(records)

    async def killed(self, connection, postgres):
        name = self.table  # unique
        await self.sql(connection, f"SET application_name = '{name}'")
        postgres.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", name)


class AsyncPsycopg(Psycopg):
    awaited = True

    @asynccontextmanager
    async def connection(self, url=None):
        connection = await psycopg.AsyncConnection.connect(url or self.url, autocommit=True)
        try:
            yield connection
        finally:
            await connection.close()

    async def sql(self, connection, statement):
        await connection.execute(statement)


class Psycopg2(Psycopg):
    begins = True
    autocommit = False

    @asynccontextmanager
    async def own_transaction(self, connection):
        before, connection.autocommit = connection.autocommit, False
        try:
            yield
            connection.commit()
        finally:
            connection.rollback()
            connection.autocommit = before

    @asynccontextmanager
    async def connection(self, url=None):
        import psycopg2

        connection = psycopg2.connect(url or self.url)
        connection.autocommit = self.autocommit
        try:
            yield connection
            assert connection.closed or connection.autocommit == self.autocommit
        finally:
            connection.close()

    async def sql(self, connection, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)


class Psycopg2Autocommit(Psycopg2):
    begins = False
    autocommit = True


class Asyncpg(AsyncPsycopg):
    @asynccontextmanager
    async def connection(self, url=None):
        import asyncpg

        async with asyncpg.create_pool(url or self.url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            yield connection

    def is_idle(self, connection):
        return not connection.is_in_transaction()


class Alchemy(Psycopg):
    driver = "psycopg"
    begins = True

    @asynccontextmanager
    async def own_transaction(self, connection):
        yield
        done = connection.commit()
        if self.awaited:
            await done

    def engine(self, url=None, **options):
        return sqlalchemy.create_engine(self.address(url), **options)

    def opened(self, engine):
        return engine.connect()

    def address(self, url):
        return (url or self.url).replace("postgresql://", f"postgresql+{self.driver}://")

    @asynccontextmanager
    async def connection(self, url=None):
        engine = self.engine(url)
        try:
            async with self.within(self.opened(engine)) as connection:
                yield connection
        finally:
            await engine.dispose() if self.awaited else engine.dispose()

    async def sql(self, connection, statement):
        done = connection.execute(sqlalchemy.text(statement))
        if self.awaited:
            await done

    async def savepoint_undone(self, connection, value):
        inner = await connection.begin_nested() if self.awaited else connection.begin_nested()
        await self.act(connection, value)
        await inner.rollback() if self.awaited else inner.rollback()

    def is_idle(self, connection):
        return not connection.in_transaction()


class AlchemySession(Alchemy):
    def opened(self, engine):
        return sqlalchemy.orm.Session(engine)


class AsyncAlchemy(Alchemy):
    awaited = True

    def engine(self, url=None, **options):
        return sqlalchemy.ext.asyncio.create_async_engine(self.address(url), **options)


class AsyncAlchemySession(AsyncAlchemy):
    def opened(self, engine):
        return sqlalchemy.ext.asyncio.AsyncSession(engine)


def on_driver(kind, driver):
    """Return a hand of SQLAlchemy on another driver."""
    return type(kind.__name__, (kind,), {"driver": driver})


class Django(Psycopg):
    engine_name = "postgresql"

    @asynccontextmanager
    async def own_transaction(self, connection):
        from django.db import transaction

        with transaction.atomic(using=connection.alias):
            yield

    @asynccontextmanager
    async def connection(self, url=None):
        connection = django_connection(f"ours{next(_ALIASES)}", url or self.url, self.engine_name)
        try:
            yield connection
        finally:
            connection.close()

    async def sql(self, connection, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    async def savepoint_undone(self, connection, value):
        from django.db import transaction

        with transaction.atomic(using=connection.alias):
            await self.act(connection, value)
            transaction.set_rollback(True, using=connection.alias)

    def is_idle(self, connection):
        return not connection.in_atomic_block


def django_connection(alias, url, engine="postgresql"):
    from django.db import connections

    from web import django_site  # noqa: F401 - configures Django

    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the tests are coroutines, and it blocks
    parts = urlsplit(url)
    made = {"ENGINE": f"django.db.backends.{engine}", "NAME": parts.path[1:]}
    made |= {"USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: made})[alias]
    return connections[alias]


HANDS = {
    "psycopg": Psycopg,
    "psycopg async": AsyncPsycopg,
    "psycopg2": Psycopg2,
    "psycopg2 in autocommit": Psycopg2Autocommit,
    "asyncpg": Asyncpg,
    "Connection": Alchemy,
    "Session": AlchemySession,
    "Connection on psycopg2": on_driver(Alchemy, "psycopg2"),
    "Session on psycopg2": on_driver(AlchemySession, "psycopg2"),
    "AsyncConnection": AsyncAlchemy,
    "AsyncSession": AsyncAlchemySession,
    "AsyncConnection on asyncpg": on_driver(AsyncAlchemy, "asyncpg"),
    "AsyncSession on asyncpg": on_driver(AsyncAlchemySession, "asyncpg"),
    "Django": Django,
}
