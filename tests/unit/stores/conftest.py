import contextlib
import sqlite3

import pytest

from fixtures import closing_fixture
from onceward.stores.sqlite.store import SqliteStore

store = closing_fixture(lambda tmp_path, clock: SqliteStore(tmp_path / "ledger.db", clock=clock))


@pytest.fixture
def sql(tmp_path):
    """Give a function that asks the file of that store, without the store."""

    def ask(statement, *values):
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
            return connection.execute(statement, values).fetchall()

    return ask
