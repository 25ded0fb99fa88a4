"""Alembic compares a database that has a ledger in it with the application's models."""

import itertools
import os
from urllib.parse import urlsplit

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text

from onceward import Once
from onceward.alembic import without_ledger

NUMBERS = itertools.count()


@pytest.fixture
def postgres_url(postgres):
    name = f"alembic_{os.getpid()}_{next(NUMBERS)}"
    postgres.sql(f"CREATE DATABASE {name}")
    return postgres.url.replace("/test", f"/{name}")


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def place(request, tmp_path, postgres_url, database):
    """A ledger's URL, and an engine to its database, in which there is also a table that no model describes."""
    if request.param == "sqlite":
        url = driver = f"sqlite:///{tmp_path}/shop.db"
    elif request.param == "postgres":
        url = postgres_url
        driver = url.replace("postgresql:", "postgresql+psycopg:")
    else:
        url = database
        parts = urlsplit(url)
        driver = f"mysql+pymysql://{parts.netloc}{parts.path}"
    engine = create_engine(driver)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE stale (id INTEGER)"))
    yield url, engine
    engine.dispose()


def proposed(engine, include_name):
    """Return what a revision would do, by names."""
    models = MetaData()
    Table("orders", models, Column("id", Integer, primary_key=True))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": include_name})
        return sorted((kind, what.name) for kind, what, *_ in compare_metadata(context, models))


def test_a_revision_leaves_the_ledger_alone(place):
    url, engine = place
    once = Once(url)
    once.run("a", len, ())
    once.close()
    assert ("remove_table", "onceward") in proposed(engine, None)
    assert proposed(engine, without_ledger()) == [("add_table", "orders"), ("remove_table", "stale")]
    own = without_ledger(include_name=lambda name, kind, parents: name != "stale")
    assert proposed(engine, own) == [("add_table", "orders")]


def test_ledgers_of_other_names_are_named(postgres_url):
    once = Once(f"{postgres_url}?table=jobs")
    once.run("a", len, ())
    once.close()
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    assert proposed(engine, without_ledger("jobs", "more")) == [("add_table", "orders")]
    engine.dispose()


@pytest.mark.parametrize("given", [(Once("memory:"),), (None,)])
def test_what_is_no_name_is_refused(given):
    with pytest.raises(TypeError, match="give names of tables"):
        without_ledger(*given)
