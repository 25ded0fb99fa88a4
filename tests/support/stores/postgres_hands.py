"""The connections on which an effect can commit with its record, each used in the same few ways.

A test is a coroutine, whether the connection blocks or not.
"""

import itertools
from contextlib import asynccontextmanager

import psycopg

_ALIASES = itertools.count()


class Psycopg:
    """A blocking connection of psycopg."""

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
            async with transaction:
                yield transaction
        else:
            with transaction:
                yield transaction

    @asynccontextmanager
    async def own_transaction(self, connection):
        """The caller's transaction, begun and ended by the library's own means."""
        if self.awaited:
            async with connection.transaction():
                yield
        else:
            with connection.transaction():
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

    def status(self, once):
        return [(record.status, record.attempts) for record, _ in once.ledger.records()]

    async def killed(self, connection, postgres):
        """Let the server end the connection."""
        name = self.table  # unique
        await self.sql(connection, f"SET application_name = '{name}'")
        postgres.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", name)


class AsyncPsycopg(Psycopg):
    """A connection of psycopg for coroutines."""

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
    """A connection of psycopg2."""

    begins = True

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
        try:
            yield connection
        finally:
            connection.close()

    async def sql(self, connection, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)


class Psycopg2Autocommit(Psycopg2):
    """The same in autocommit."""

    begins = False

    @asynccontextmanager
    async def connection(self, url=None):
        async with super().connection(url) as connection:
            connection.autocommit = True
            yield connection
            assert connection.closed or connection.autocommit


class Asyncpg(Psycopg):
    """A connection of asyncpg's pool."""

    awaited = True

    @asynccontextmanager
    async def connection(self, url=None):
        import asyncpg

        async with asyncpg.create_pool(url or self.url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            yield connection

    async def sql(self, connection, statement):
        await connection.execute(statement)

    def is_idle(self, connection):
        return not connection.is_in_transaction()


class Alchemy(Psycopg):
    """A Connection of SQLAlchemy."""

    driver = "psycopg"
    begins = True

    @asynccontextmanager
    async def own_transaction(self, connection):
        yield
        done = connection.commit()
        if self.awaited:
            await done

    def engine(self, url=None, **options):
        from sqlalchemy import create_engine

        return create_engine(self.address(url), **options)

    def address(self, url):
        return (url or self.url).replace("postgresql://", f"postgresql+{self.driver}://")

    @asynccontextmanager
    async def connection(self, url=None):
        engine = self.engine(url)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    async def sql(self, connection, statement):
        from sqlalchemy import text

        connection.execute(text(statement))

    async def savepoint_undone(self, connection, value):
        inner = connection.begin_nested()
        await self.act(connection, value)
        inner.rollback()

    def is_idle(self, connection):
        return not connection.in_transaction()


class AlchemySession(Alchemy):
    """A Session of SQLAlchemy."""

    @asynccontextmanager
    async def connection(self, url=None):
        from sqlalchemy.orm import Session

        engine = self.engine(url)
        try:
            with Session(engine) as session:
                yield session
        finally:
            engine.dispose()


class AsyncAlchemy(Alchemy):
    """An AsyncConnection of SQLAlchemy."""

    awaited = True

    def engine(self, url=None, **options):
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(self.address(url), **options)

    @asynccontextmanager
    async def connection(self, url=None):
        engine = self.engine(url)
        try:
            async with engine.connect() as connection:
                yield connection
        finally:
            await engine.dispose()

    async def sql(self, connection, statement):
        from sqlalchemy import text

        await connection.execute(text(statement))

    async def savepoint_undone(self, connection, value):
        inner = await connection.begin_nested()
        await self.act(connection, value)
        await inner.rollback()


class AsyncAlchemySession(AsyncAlchemy):
    """An AsyncSession of SQLAlchemy."""

    @asynccontextmanager
    async def connection(self, url=None):
        from sqlalchemy.ext.asyncio import AsyncSession

        engine = self.engine(url)
        try:
            async with AsyncSession(engine) as session:
                yield session
        finally:
            await engine.dispose()


class AsyncpgAlchemy(AsyncAlchemy):
    """As above, on asyncpg."""

    driver = "asyncpg"


class AsyncpgAlchemySession(AsyncAlchemySession):
    """As above, on asyncpg."""

    driver = "asyncpg"


class Psycopg2Alchemy(Alchemy):
    """As above, on psycopg2."""

    driver = "psycopg2"


class Psycopg2AlchemySession(AlchemySession):
    """As above, on psycopg2."""

    driver = "psycopg2"


class Django(Psycopg):
    """One of Django's connections."""

    engine = "postgresql"

    @asynccontextmanager
    async def own_transaction(self, connection):
        from django.db import transaction

        with transaction.atomic(using=connection.alias):
            yield

    @asynccontextmanager
    async def connection(self, url=None):
        connection = django_connection(f"ours{next(_ALIASES)}", url or self.url, self.engine)
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
    """Return Django's connection to a database of the site."""
    import os
    from urllib.parse import urlsplit

    from django.db import connections

    from web import django_site  # noqa: F401 - configures Django

    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the tests are coroutines, and it blocks

    parts = urlsplit(url)
    made = {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
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
    "Connection on psycopg2": Psycopg2Alchemy,
    "Session on psycopg2": Psycopg2AlchemySession,
    "AsyncConnection": AsyncAlchemy,
    "AsyncSession": AsyncAlchemySession,
    "AsyncConnection on asyncpg": AsyncpgAlchemy,
    "AsyncSession on asyncpg": AsyncpgAlchemySession,
    "Django": Django,
}
