"""Connections of SQLite: one that does something at its COMMIT, and the hand of the shared cases."""

import contextlib
import sqlite3
from contextlib import asynccontextmanager

from stores.postgres_hands import Psycopg


class Commits:
    def __init__(self, connection, at_commit):
        self._connection, self._at_commit = connection, at_commit

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def __setattr__(self, name, value):
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._connection, name, value)

    def execute(self, sql, *parameters):
        if sql == "COMMIT" and self._at_commit:
            at_commit, self._at_commit = self._at_commit, None
            at_commit(self._connection)
        return self._connection.execute(sql, *parameters)


def commits_and_raises(error):
    def at_commit(connection):
        connection.execute("COMMIT")
        raise error

    return at_commit


def rolls_back_and_raises(error):
    def at_commit(connection):
        connection.execute("ROLLBACK")
        raise error

    return at_commit


def raises(error):
    def at_commit(_):
        raise error

    return at_commit


class Sqlite(Psycopg):
    def __init__(self, path, level):
        self.url, self.table, self._level = path, "effects", level

    @asynccontextmanager
    async def connection(self, url=None):
        with contextlib.closing(sqlite3.connect(self.url, isolation_level=self._level)) as connection:
            yield connection

    async def savepoint_undone(self, connection, value):
        await self.sql(connection, "SAVEPOINT mine")
        await self.act(connection, value)
        await self.sql(connection, "ROLLBACK TO mine")

    def is_idle(self, connection):
        return not connection.in_transaction
