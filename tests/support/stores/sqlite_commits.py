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


def _after(statement):
    """Return what makes, of an error, something to do at a COMMIT: the statement, and then the error."""

    def raising(error):
        def at_commit(connection):
            connection.execute(statement)
            raise error

        return at_commit

    return raising


commits_and_raises, rolls_back_and_raises, raises = map(_after, ("COMMIT", "ROLLBACK", "SELECT 1"))


class Sqlite(Psycopg):
    def __init__(self, path, level):
        self.url, self.table, self._level = path, "effects", level

    @asynccontextmanager
    async def connection(self, url=None):
        with contextlib.closing(sqlite3.connect(self.url, isolation_level=self._level)) as connection:
            yield connection

    def is_idle(self, connection):
        return not connection.in_transaction
