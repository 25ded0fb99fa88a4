"""An actor's own connections to the ledger's database, on which its effects commit with their records."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pymysql


class SqliteHand:
    marks = "(?, ?, ?)"

    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=5, isolation_level=None)
        self._connection.execute("PRAGMA foreign_keys=ON")

    def connection(self) -> sqlite3.Connection:
        return self._connection


class ServedHand:
    """A connection that is made anew when it was lost or is busy."""

    marks = "(%s, %s, %s)"
    _made = None

    def connection(self):
        if self._made is not None and not self._is_idle(self._made):
            self._made.close()
            self._made = None
        self._made = self._made or self._connect()
        return self._made


class PostgresHand(ServedHand):
    def __init__(self, url: str) -> None:
        place, _, options = url.partition("?")
        schema = options.partition("&")[0].partition("=")[2]
        self._where = f"{place}?options=-csearch_path%3D{schema}&connect_timeout=2"

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._where, autocommit=True)

    def _is_idle(self, made: psycopg.Connection) -> bool:
        return not made.closed and made.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[psycopg.AsyncConnection]:
        connection = await psycopg.AsyncConnection.connect(self._where, autocommit=True)
        try:
            yield connection
        finally:
            await connection.close()


class Executing(pymysql.Connection):
    """With what the other driver's connection has."""

    @property
    def closed(self) -> bool:
        return not self.open

    def close(self) -> None:
        if self.open:
            super().close()

    def execute(self, statement: str, values: object = None) -> object:
        cursor = self.cursor()
        cursor.execute(statement, values)
        return cursor


class MysqlHand(ServedHand):
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        place = {"host": "127.0.0.1", "port": parts.port, "user": "root", "database": parts.path[1:]}
        self._where = {**place, "autocommit": True, "connect_timeout": 2}

    def _connect(self) -> Executing:
        return Executing(**self._where)

    def _is_idle(self, made: Executing) -> bool:
        return made.open and not made.server_status & 1

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[object]:
        import asyncmy

        connection = await asyncmy.connect(**self._where)
        connection.execute = partial(_execute, connection)
        try:
            yield connection
        finally:
            connection.close()


async def _execute(connection: object, statement: str, values: object = None) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(statement, values)


HANDS = {"sqlite": SqliteHand, "postgresql": PostgresHand, "mysql": MysqlHand}
