"""The example project on each database."""

import shutil

import pytest

from web.django_shops import Shop, database_of


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def empty(request, tmp_path, postgres, mariadb):
    """Make an empty database of one kind, and return its URL."""
    return lambda: database_of(request.param, tmp_path, postgres, mariadb)


@pytest.fixture
def bare(empty):
    """The project on an empty database."""
    return Shop(empty())


@pytest.fixture
def shop(bare):
    """The project on a database with its tables."""
    bare.manage("migrate", "-v0")
    return bare


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """A file of SQLite with the project's tables, to be copied."""
    made = Shop(database_of("sqlite", tmp_path_factory.mktemp("tables")))
    made.manage("migrate", "-v0")
    return made.database.removeprefix("sqlite3://")


@pytest.fixture
def small(tmp_path, tables):
    """The project on SQLite, with its tables."""
    made = Shop(database_of("sqlite", tmp_path))
    shutil.copy(tables, made.database.removeprefix("sqlite3://"))
    return made
