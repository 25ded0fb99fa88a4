"""Doctor compares a ledger's table with what this version needs, and names each difference."""

import sqlite3
from contextlib import closing

import psycopg
import pymysql
import pytest

from onceward import Once
from onceward.stores import url_parts
from onceward.stores.capabilities import INSPECT
from onceward.stores.mysql import place_of


def altering(url, *statements):
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.partition(":///")[2], isolation_level=None)
    elif url.startswith("postgresql"):
        connection = psycopg.connect(url, autocommit=True)
    else:
        connection = pymysql.connect(**place_of(*url_parts(url)), autocommit=True)
    with closing(connection), closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)


def told(once):
    return [one.says for one in INSPECT.require(once.store)().findings() if one.check == "table"]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request, tmp_path, postgres, database):
    if request.param == "postgres":
        name = f"differences_{tmp_path.name}".replace("-", "_").lower()[:60]
        postgres.sql(f"CREATE DATABASE {name}")
        return postgres.url.replace("/test", f"/{name}")
    return database if request.param == "mariadb" else f"sqlite:///{tmp_path}/ledger.db"


def test_each_difference_is_named(url):
    once = Once(url)
    assert told(once) == []
    once.run("a", len, ())
    assert told(once) == []
    index = "DROP INDEX onceward_due" + (" ON onceward" if url.startswith("mysql") else "")
    altering(url, index, "ALTER TABLE onceward DROP COLUMN trace", "ALTER TABLE onceward DROP COLUMN worker")
    kinds = {"sqlite": ("integer", "text"), "postgresql": ("integer", "text"), "mysql": ("int", "longtext")}
    found, wanted = kinds[url.partition(":")[0]]
    altering(url, f"ALTER TABLE onceward ADD COLUMN worker {found}")
    assert told(once) == [
        f"the column worker is {found}, and not {wanted}",
        "the ledger's table has no column trace",
        "the ledger's table has no index onceward_due",
    ]
    once.close()
