"""Alembic compares a database that has a ledger in it with the application's models; doctor compares the ledger's table with ours."""

import itertools
import os
from urllib.parse import urlsplit

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text

from onceward import Once
from onceward.alembic import without_ledger
from onceward.sqlalchemy import make_ledger, tables
from stores.schemas import provisioned, schema_of

pytestmark = pytest.mark.sampled(empty=1)

NUMBERS = itertools.count()


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def empty(request, tmp_path, postgres, mariadb):
    """Make an empty database, and return its URL for a ledger."""

    def make():
        name = f"alembic_{os.getpid()}_{next(NUMBERS)}"
        if request.param == "sqlite":
            return f"sqlite:////{str(tmp_path)[1:]}/{name}.db"
        if request.param == "mariadb":
            return mariadb.database(name)
        postgres.sql(f"CREATE DATABASE {name}")
        return postgres.url.replace("/test", f"/{name}")

    return make


def driver_url(url):
    """Return a ledger's URL as SQLAlchemy takes it."""
    parts = urlsplit(url)
    drivers = {"sqlite": url, "mysql": f"mysql+pymysql://{parts.netloc}{parts.path}"}
    return drivers.get(parts.scheme, url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture
def place(empty):
    """A ledger's URL, and an engine to its database, in which there is also a table that no model describes."""
    url = empty()
    engine = create_engine(driver_url(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE stale (id INTEGER)"))
    yield url, engine
    engine.dispose()


def test_a_revision_leaves_the_ledger_alone(place):
    url, engine = place
    once = Once(url)
    once.run("a", len, ())
    once.close()
    orders = MetaData()
    Table("orders", orders, Column("id", Integer, primary_key=True))
    assert ("remove_table", "onceward") in names(engine, orders)
    alone = names(engine, orders, include_name=without_ledger())
    assert alone == [("add_table", "orders"), ("remove_table", "stale")]
    own = without_ledger(include_name=lambda name, kind, parents: name != "stale")
    assert names(engine, orders, include_name=own) == [("add_table", "orders")]


@pytest.fixture
def models():
    made = MetaData()
    Table("orders", made, Column("id", Integer, primary_key=True))
    tables(made)
    tables(made)  # once more changes nothing
    return made


def names(engine, models, **options):
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection, opts=options), models)
    return sorted((kind, getattr(what, "name", what)) for kind, what, *_ in found)


def test_a_revision_makes_the_ledger_that_init_makes_and_no_further_one_drops_it(empty, place, models):
    url, engine = place
    rest = [("add_table", "orders"), ("remove_table", "stale")]
    assert names(engine, models) == rest
    for _ in range(2):
        with engine.begin() as connection:
            make_ledger(Operations(MigrationContext.configure(connection)))
    assert schema_of(url) == provisioned(empty())
    assert names(engine, models) == rest
    once = Once(url)
    assert once.run("a", len, ()) == 0
    once.close()


def test_create_all_makes_the_ledger_and_drop_all_leaves_it(empty, models):
    url = empty()
    engine = create_engine(driver_url(url))
    for _ in range(2):
        models.create_all(engine)
    models.drop_all(engine)
    engine.dispose()
    assert schema_of(url) == provisioned(empty())


@pytest.mark.parametrize("empty", ["postgres"], indirect=True)
def test_a_ledger_of_another_name_and_schema_is_declared(empty):
    url, made = empty(), MetaData()
    tables(made, table="jobs", schema="ledgers")
    engine = create_engine(driver_url(url))
    made.create_all(engine)
    assert names(engine, made) == []
    once = Once(f"{url}?table=jobs&schema=ledgers")
    assert once.run("a", len, ()) == 0
    once.close()
    engine.dispose()
