"""What the tests of SQLite ledgers share; a file that needs another one overrides it."""

import contextlib
import sqlite3

import pytest

from fixtures import closing_fixture
from onceward import Once
from stores.sqlite_commits import Sqlite


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


once = closing_fixture(lambda path: Once(f"sqlite:///{path}"))


@pytest.fixture
def effects(path):
    """Make a table of effects beside the ledger, and return what reads it."""

    def read():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return [value for (value,) in connection.execute("SELECT value FROM effects ORDER BY rowid")]

    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effects (value)")
        connection.commit()
    return read


@pytest.fixture(params=["", "IMMEDIATE", None], ids=lambda level: f"isolation_level={level!r}")
def level(request):
    return request.param


connection = closing_fixture(lambda level, path, effects: sqlite3.connect(path, isolation_level=level))


@pytest.fixture
def hand(level, path, effects):
    return Sqlite(path, level)
