"""Ledgers that several processes share, with a place for effects that commit with their records; a worker opens one with ``at(url)``."""

import asyncio
import collections
import contextlib
import os
import random
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from importlib import import_module
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Self
from urllib.parse import urlsplit


def counting(table: str, name: str) -> dict[str, object]:
    """Return the update of DynamoDB that counts one more effect of this name."""
    one = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    return {"TableName": table, "Key": {"id": {"S": name}}, **one}


class Served:
    """A ledger on a server that a test can kill."""

    away: tuple[type[Exception], ...] = ()  # what the driver raises while the server is away
    shared = ""  # the fixture of the run's server
    server = ""  # the class of one: workers do without it, and without pytest

    def __init__(self, url: str):
        self.url = url

    @classmethod
    def fresh(cls, request, folder) -> Self:
        return cls._on(request.getfixturevalue(cls.shared), f"ledger_{uuid.uuid4().hex}")

    @classmethod
    def _server(cls, request, folder):
        return resolve_name(cls.server)()

    @classmethod
    @contextlib.contextmanager
    def own_server(cls, request, folder):
        """Give a ledger and the server that it is on, with ``stop`` and ``start``; it loses nothing."""
        server = cls._server(request, folder)
        try:
            yield cls._on(server, "ledger"), SimpleNamespace(stop=server.crash, start=server.start)
        finally:
            server.stop()


class SqlLedger(Served, ABC):
    """Effects are rows of a table in the ledger's database. Subclasses say how to connect, and the mark of a parameter."""

    mark = "?"
    driver = "sqlite3"
    key = "key"  # the name of that column

    @property
    def away(self):
        driver = import_module(self.driver)
        return (driver.OperationalError, driver.InterfaceError)

    @abstractmethod
    def connect(self): ...

    @classmethod
    def created(cls, url: str) -> Self:
        made = cls(url)
        with contextlib.closing(made.connect()) as connection:
            connection.execute("CREATE TABLE effects (name VARCHAR(100))")
        return made

    def spend(self, claim, name: str, result) -> None:
        """Make the effect ``name`` and complete ``claim`` with ``result``, all in one transaction."""
        with contextlib.closing(self.connect()) as connection, claim.transaction(connection) as tx:
            self._spend(connection, tx, name, result)

    async def spend_async(self, claim, name: str, result) -> None:
        await asyncio.to_thread(self.spend, claim, name, result)

    def _spend(self, connection, tx, name, result):
        time.sleep(random.random() * 0.01)  # long enough to be killed in
        connection.execute(f"INSERT INTO effects VALUES ({self.mark})", (name,))
        tx.result = result

    def spent(self) -> dict[str, int]:
        """How often each effect was made."""
        with contextlib.closing(self.connect()) as connection:
            return dict(collections.Counter(name for (name,) in connection.execute("SELECT name FROM effects")))

    def stored(self, key: str) -> dict[str, object]:
        """The fields of a record as they are in the database, also those that this version does not know."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.execute(f"SELECT * FROM onceward WHERE {self.key} = {self.mark}", (key,))
            return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))


class SqliteLedger(SqlLedger):
    scheme = "sqlite"

    @classmethod
    def fresh(cls, request, folder) -> Self:
        return cls.created(f"sqlite:///{folder}/ledger.db?timeout=30")

    @classmethod
    @contextlib.contextmanager
    def own_server(cls, request, folder):
        """Give a ledger, and what stands for its server."""
        yield cls.fresh(request, folder), SimpleNamespace(stop=lambda: None, start=lambda: None)

    def connect(self):
        path = urlsplit(self.url).path.removeprefix("/")
        return sqlite3.connect(path, timeout=30, isolation_level=None)


class PostgresLedger(SqlLedger):
    scheme = "postgresql"
    shared = "postgres15"
    mark = "%s"

    server = "servers.postgres:Postgres"
    driver = "psycopg"

    @classmethod
    def _on(cls, server, schema):
        server.sql(f"CREATE SCHEMA {schema}", database="test")
        return cls.created(f"{server.url}?schema={schema}")

    def connect(self):
        import psycopg

        place, _, schema = self.url.partition("?schema=")
        return psycopg.connect(place, autocommit=True, options=schema and f"-csearch_path={schema}")


class MysqlLedger(SqlLedger):
    scheme = "mysql"
    mark = "%s"
    key = "`key`"
    shared = "mariadb"

    server = "servers.mysql:Mariadb"
    driver = "pymysql"

    @classmethod
    def _on(cls, server, database):
        return cls.created(server.database(database))

    def connect(self):
        from torture.hands import Executing

        parts = urlsplit(self.url)
        place = {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}
        return Executing(**place, autocommit=True)


class DynamoLedger(Served):
    """Effects are counters in another table."""

    scheme = "dynamodb"
    shared = "dynoxide"
    server = "servers.dynoxide:Dynoxide"

    @property
    def _table(self):
        return urlsplit(self.url).netloc

    @classmethod
    def fresh(cls, request, folder) -> Self:
        request.getfixturevalue("aws")
        return super().fresh(request, folder)

    @classmethod
    def _server(cls, request, folder):
        request.getfixturevalue("aws")
        return resolve_name(cls.server)(folder / "db")

    @classmethod
    def _on(cls, server, table):
        server.table(table)
        server.table(f"effects-of-{table}", {"id": "S"})
        return cls(f"dynamodb://{table}?endpoint={server.url}")

    def spend(self, claim, name, result):
        claim.transact([self._adding(name)], result)

    async def spend_async(self, claim, name, result):
        await claim.transact_async([self._adding(name)], result)

    def _adding(self, name):
        return {"Update": counting(f"effects-of-{self._table}", name)}

    def spent(self):
        return {item["id"]["S"]: int(item["n"]["N"]) for item in self._items(f"effects-of-{self._table}")}

    def stored(self, key):
        (item,) = [item for item in self._items(self._table) if item["key"]["S"] == key]
        return {name: value.get("S") for name, value in item.items()}

    def _items(self, table):
        return resolve_name(self.server).at(int(self.url.rpartition(":")[2])).items(table)


class RedisLedger(Served):
    """Effects are lines of ``journal``, because none can commit with its record on Redis. It is for campaigns only."""

    scheme = "redis"
    journal = None  # a path

    server = "servers.redis:Redis"

    @classmethod
    def _server(cls, request, folder):
        return resolve_name(cls.server)(appendonly="yes", appendfsync="always")

    @classmethod
    def _on(cls, server, _):
        return cls(server.url)

    def stored(self, key):
        import redis

        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            found = (client.hgetall(one) for one in client.scan_iter(_type="hash"))
            (record,) = [one for one in found if one.get("key") == key]
        return record

    def spend(self, claim, name, result):
        journal = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(journal, f"{name} {claim.fence}\n".encode())  # one call: it is there, or it is not
        finally:
            os.close(journal)

    async def spend_async(self, claim, name, result):
        self.spend(claim, name, result)

    def spent(self):
        return dict(collections.Counter(name for name, _ in self._lines()))

    def fenced(self, name):
        """Return whether each effect of this name was made under a fence of its own."""
        fences = [fence for one, fence in self._lines() if one == str(name)]
        return len(set(fences)) == len(fences)

    def _lines(self):
        if not os.path.exists(self.journal):
            return []
        with open(self.journal) as file:
            return [line.split() for line in file.read().splitlines()]


LEDGERS = {"sqlite": SqliteLedger, "dynamodb": DynamoLedger, "postgresql": PostgresLedger, "mysql": MysqlLedger}


def at(url: str):
    (kind,) = {kind for kind in (*LEDGERS.values(), RedisLedger) if kind.scheme == urlsplit(url).scheme}
    return kind(url)
