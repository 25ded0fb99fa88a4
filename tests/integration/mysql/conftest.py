"""Ledgers in MariaDB, and the connections on which effects commit with their records."""

import pytest

from fixtures import closing_fixture
from onceward import Once
from servers.wires import CommitProxy, MysqlWire
from stores.mysql_hands import HANDS, name_of


@pytest.fixture
def schema(database):
    """The URL of the ledger."""
    return database


@pytest.fixture
def sql(mariadb, database):
    return lambda statement, *values: mariadb.sql(statement, *values, database=name_of(database))


@pytest.fixture
def effects(sql):
    sql("CREATE TABLE effects (value varchar(100))")
    return lambda: [value for (value,) in sql("SELECT value FROM effects")]


once = closing_fixture(Once, "database")


@pytest.fixture(params=list(HANDS))
def hand(request, database):
    return HANDS[request.param](database, "effects")


@pytest.fixture
def server(mariadb):
    return mariadb


proxy = closing_fixture(lambda mariadb: CommitProxy(MysqlWire(mariadb.port)))


@pytest.fixture
def through(mariadb, proxy, database):
    """The database's URL through the proxy."""
    return database.replace(f":{mariadb.port}", f":{proxy.port}")
