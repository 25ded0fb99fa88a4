"""What tests of MySQL ledgers have in common."""

import contextlib
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pymysql

from onceward.stores.mysql.statements import STARTED
from stores import postgres_hands

NAP = "SELECT SLEEP(20)"


def name_of(url: str) -> str:
    return urlsplit(url).path.strip("/")


class Moved:
    def __init__(self, conduit, passed):
        self._conduit, self._passed = conduit, passed
        self.timeout, self.close = conduit.timeout, conduit.close

    def run(self, request, asked):
        return self._conduit.run(request, lambda one: (self._told(*asked(one)),))

    async def run_async(self, request, asked):
        return await self._conduit.run_async(request, lambda one: (self._told(*asked(one)),))

    def _told(self, texts):
        return [text.replace(STARTED, f"({STARTED} + {round(sum(self._passed) * 1e6)})") for text in texts]


def moved_clock(store, passed):
    """Return the store on a clock that is ahead by the sum of ``passed`` seconds."""
    store.conduit = Moved(store.conduit, passed)
    return store


def killed(server, database):
    for (number,) in server.sql("SELECT id FROM information_schema.processlist WHERE db = %s", database):
        with contextlib.suppress(pymysql.OperationalError):  # it is gone already
            server.sql(f"KILL {number}")


def place_of(url):
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": name_of(url)}


class _Mysql:
    driver = "pymysql"
    engine_name = "mysql"
    nap = NAP

    async def killed(self, connection, server):
        killed(server, name_of(self.url))

    def address(self, url):
        return (url or self.url).replace("mysql://", f"mysql+{self.driver}://")


class Pymysql(_Mysql, postgres_hands.Psycopg):
    autocommit = True

    @asynccontextmanager
    async def own_transaction(self, connection):
        try:
            await self.sql(connection, "BEGIN")
            yield
            await self.sql(connection, "COMMIT")
        finally:
            await self.sql(connection, "ROLLBACK")

    @asynccontextmanager
    async def connection(self, url=None):
        connection = pymysql.connect(**place_of(url or self.url), autocommit=self.autocommit)
        try:
            yield connection
            assert not connection.open or connection.get_autocommit() == self.autocommit
        finally:
            if connection.open:
                connection.close()

    async def sql(self, connection, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def is_idle(self, connection):
        return not connection.open or not connection.server_status & 1


class PymysqlPlain(Pymysql):
    """As PyMySQL makes it: each statement begins a transaction."""

    autocommit = False
    begins = True


class Asyncmy(Pymysql):
    awaited = True

    @asynccontextmanager
    async def connection(self, url=None):
        import asyncmy

        connection = await asyncmy.connect(**place_of(url or self.url), autocommit=True)
        try:
            yield connection
        finally:
            await connection.ensure_closed()

    async def sql(self, connection, statement):
        async with connection.cursor() as cursor:
            await cursor.execute(statement)

    def is_idle(self, connection):
        return not connection.connected or not connection.server_status & 1


def _on_mysql(kind, driver="pymysql"):
    """Return a hand of PostgreSQL as one of MySQL."""
    return type(kind.__name__, (_Mysql, kind), {"driver": driver})


def django_on_mysql(alias, url):
    return postgres_hands.django_connection(alias, url, "mysql")


pymysql.install_as_MySQLdb()
HANDS = {
    "pymysql": Pymysql,
    "pymysql without autocommit": PymysqlPlain,
    "asyncmy": Asyncmy,
    "Connection": _on_mysql(postgres_hands.Alchemy),
    "Session": _on_mysql(postgres_hands.AlchemySession),
    "AsyncConnection": _on_mysql(postgres_hands.AsyncAlchemy, "asyncmy"),
    "AsyncSession": _on_mysql(postgres_hands.AsyncAlchemySession, "asyncmy"),
    "Django": _on_mysql(postgres_hands.Django),
}
