"""The example project on each database."""

import pytest

from django_shops import Shop, database_of


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


@pytest.fixture
def small(tmp_path):
    """The project on SQLite, with its tables."""
    made = Shop(database_of("sqlite", tmp_path))
    made.manage("migrate", "-v0")
    return made
