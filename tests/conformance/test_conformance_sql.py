"""The SQL stores pass the conformance suite: PostgreSQL on both versions, and MySQL on MariaDB, also by the statements that MySQL gets."""

import time
import uuid

import pytest

from onceward.stores import open_store
from onceward.stores.mysql import schema as mysql
from onceward.testing.conformance import CHECKS, MODES, Bench
from stores.mysql_hands import moved_clock, name_of
from stores.unknown_fields import check_unknown_fields_stay
from tables import each

pytestmark = pytest.mark.sampled(mode=1)


def column_of(server, database, key):
    """Return what adds a column to the ledger and fills it for one record; ``key`` is the name of the key's column."""

    def column(store, name):
        ask = lambda statement, *values: server.sql(
            statement.format(store.names.table, key), *values, database=database
        )
        ask("ALTER TABLE {0} ADD COLUMN IF NOT EXISTS later text")
        ask("UPDATE {0} SET later = 'x' WHERE {1} = %s", name)
        return lambda: ask("SELECT later FROM {0} WHERE {1} = %s", name) == [("x",)]

    return column


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_postgres_store_conforms(check, mode, postgres):
    name = f"ledger_{uuid.uuid4().hex}"
    url = f"{postgres.url}?schema={name}&options=-csearch_path%3D{name},pg_catalog"
    make = lambda *_: open_store(url)
    check.run(Bench(make, make, mode=mode, advance=postgres.own_clock(name)))


def on_mariadb(server, mode="sync"):
    url, passed = server.database(f"ledger_{uuid.uuid4().hex}"), []
    make = lambda *_: moved_clock(open_store(url), passed)
    return Bench(make, make, mode=mode, advance=passed.append)


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_mysql_store_conforms_on_mariadb(check, mode, mariadb):
    check.run(on_mariadb(mariadb, mode))


@each("check", CHECKS)
def test_the_mysql_store_conforms_by_the_statements_for_mysql(check, mariadb, monkeypatch):
    as_mysql = mysql.MYSQL._replace(mariadb=False)
    monkeypatch.setattr(mysql.Flavor, "collation", "utf8mb4_nopad_bin")  # MariaDB has not the other one
    monkeypatch.setattr(mysql, "flavor_of", lambda _: as_mysql)
    check.run(on_mariadb(mariadb))


@pytest.mark.parametrize("check", ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"])
def test_the_stores_on_their_own_clocks_conform(check, schema, database):
    (one,) = [c for c in CHECKS if c.name == check]
    for url in (schema, database):
        one.run(Bench(lambda _, url=url: open_store(url), advance=time.sleep))


def test_a_write_keeps_the_fields_of_a_newer_version(postgres, mariadb, schema, database):
    for url, column in (
        (schema, column_of(postgres, "test", "key")),
        (database, column_of(mariadb, name_of(database), "`key`")),
    ):
        check_unknown_fields_stay(Bench(lambda _, url=url: open_store(url)), column)
