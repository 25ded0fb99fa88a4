"""Ledgers in PostgreSQL, and the connections on which effects commit with their records."""

import pytest
from django.db import connections

from fixtures import closing_fixture
from onceward import Once
from onceward.core.drivers import drive
from onceward.stores import open_store
from servers.wires import CommitProxy, Wire
from stores.postgres_hands import HANDS, django_connection


@pytest.fixture
def table(postgres, schema):
    """The table of the effects, of each test its own."""
    name = schema.replace("ledger_", "effects_").partition("schema=")[2]
    postgres.sql(f"CREATE TABLE {name} (value text)", database="test")
    return name


@pytest.fixture
def effects(postgres, table):
    return lambda: [value for (value,) in postgres.sql(f"SELECT value FROM {table}", database="test")]


once = closing_fixture(Once, "schema")


@pytest.fixture(params=list(HANDS))
def hand(request, postgres, table):
    return HANDS[request.param](postgres.url, table)


@pytest.fixture
def django(postgres, table):
    made = django_connection(table, postgres.url)
    yield made
    made.close()
    del connections.settings[table]


@pytest.fixture
def store(schema):
    store = open_store(schema)
    drive(store.load("?"), store)
    yield store
    store.close()


@pytest.fixture
def sql(postgres):
    return lambda statement, *values: postgres.sql(statement, *values, database="test")


@pytest.fixture
def server(postgres):
    return postgres


proxy = closing_fixture(lambda postgres: CommitProxy(Wire(postgres.port)))


@pytest.fixture
def through(postgres, proxy):
    """The database's URL through the proxy."""
    return postgres.url.replace(f":{postgres.port}", f":{proxy.port}")
