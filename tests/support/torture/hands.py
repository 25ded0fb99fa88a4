"""An actor's own connections to the ledger's database, on which its effects commit with their records."""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg


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


HANDS = {"sqlite": SqliteHand, "postgresql": PostgresHand}
