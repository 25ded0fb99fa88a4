"""An actor's own connections to the ledger's database, on which its effects commit with their records."""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pymysql


class SqliteHand:
    """One connection."""

    marks = "(?, ?, ?)"

    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=5, isolation_level=None)
        self._connection.execute("PRAGMA foreign_keys=ON")

    def connection(self) -> sqlite3.Connection:
        return self._connection


class PostgresHand:
    """A connection that is made anew when it was lost, or is another process's."""

    marks = "(%s, %s, %s)"

    def __init__(self, url: str) -> None:
        place, _, options = url.partition("?")
        schema = options.partition("&")[0].partition("=")[2]
        self._where = f"{place}?options=-csearch_path%3D{schema}&connect_timeout=2"
        self._made: psycopg.Connection | None = None
        self._process = 0

    def connection(self) -> psycopg.Connection:
        """Return one that is idle, so that a transaction of ours can begin."""
        made = self._made
        idle = psycopg.pq.TransactionStatus.IDLE
        if made is None or self._process != os.getpid() or made.closed or made.info.transaction_status != idle:
            if made is not None and self._process == os.getpid():
                made.close()
            self._process, self._made = os.getpid(), psycopg.connect(self._where, autocommit=True)
        assert self._made is not None
        return self._made

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Give a connection of the running event loop."""
        connection = await psycopg.AsyncConnection.connect(self._where, autocommit=True)
        try:
            yield connection
        finally:
            await connection.close()


class _Executing(pymysql.Connection):
    """With ``execute``, as the other drivers' connections have it."""

    def execute(self, statement: str, values: object = None) -> object:
        cursor = self.cursor()
        cursor.execute(statement, values)
        return cursor


class MysqlHand:
    """As :class:`PostgresHand`."""

    marks = "(%s, %s, %s)"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._where = {"host": "127.0.0.1", "port": parts.port, "user": "root", "database": parts.path[1:]}
        self._made: _Executing | None = None
        self._process = 0

    def connection(self) -> _Executing:
        """Return one that is idle, so that a transaction of ours can begin."""
        made = self._made
        if made is None or self._process != os.getpid() or not made.open or made.server_status & 1:
            if made is not None and self._process == os.getpid() and made.open:
                made.close()
            elif made is not None:
                _INHERITED.append(made)
            self._process, self._made = os.getpid(), _Executing(**self._where, autocommit=True, connect_timeout=2)
        assert self._made is not None
        return self._made

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[object]:
        """Give a connection of the running event loop."""
        import asyncmy

        connection = await asyncmy.connect(**self._where, autocommit=True, connect_timeout=2)
        connection.execute = partial(_execute, connection)
        try:
            yield connection
        finally:
            connection.close()


async def _execute(connection: object, statement: str, values: object = None) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(statement, values)


_INHERITED: list[object] = []
HANDS = {"sqlite": SqliteHand, "postgresql": PostgresHand, "mysql": MysqlHand}
