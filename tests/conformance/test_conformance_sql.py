"""The SQL stores pass the conformance suite: PostgreSQL on both versions, and MySQL on MariaDB, also by the statements that MySQL gets."""

import time
import uuid

import pytest

from onceward.stores import open_store
from onceward.stores.mysql import schema as mysql
from onceward.testing.conformance import CHECKS, MODES, Bench
from stores.mysql_hands import moved_clock, name_of
from tables import each

pytestmark = pytest.mark.sampled(mode=1)


def bench_on(server, database, make, advance, mode="sync", key="key"):
    """Return a bench on a ledger with a clock of its own; ``key`` is the name of that column."""

    def column(store, name):
        ask = lambda statement, *values: server.sql(
            statement.format(store.names.table, key), *values, database=database
        )
        ask("ALTER TABLE {0} ADD COLUMN IF NOT EXISTS later text")
        ask("UPDATE {0} SET later = 'x' WHERE {1} = %s", name)
        return lambda: ask("SELECT later FROM {0} WHERE {1} = %s", name) == [("x",)]

    return Bench(make, make, mode=mode, advance=advance, unknown=column)


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_postgres_store_conforms(check, mode, postgres):
    name = f"ledger_{uuid.uuid4().hex}"
    url = f"{postgres.url}?schema={name}&options=-csearch_path%3D{name},pg_catalog"
    check.run(bench_on(postgres, "test", lambda *_: open_store(url), postgres.own_clock(name), mode))


def on_mariadb(server, mode="sync"):
    url, passed = server.database(f"ledger_{uuid.uuid4().hex}"), []
    make = lambda *_: moved_clock(open_store(url), passed)
    return bench_on(server, name_of(url), make, passed.append, mode, "`key`")


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
