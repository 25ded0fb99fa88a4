"""The MySQL store passes the conformance suite on MariaDB, also by the statements that MySQL gets."""

import time
import uuid

import pytest

from onceward.stores import open_store
from onceward.stores.mysql import schema
from onceward.testing.conformance import CHECKS, MODES, Bench
from stores.mysql_hands import moved_clock, name_of
from tables import each

pytestmark = pytest.mark.sampled(mode=1)

CLOCKS = ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"]


@pytest.fixture
def bench(mariadb):
    """What makes a bench on an empty ledger with a clock of its own."""

    def made(mode):
        database = mariadb.database(f"ledger_{uuid.uuid4().hex}")
        name, passed = name_of(database), []

        def column(store, key):
            mariadb.sql(f"ALTER TABLE {store.names.table} ADD COLUMN IF NOT EXISTS later text", database=name)
            mariadb.sql(f"UPDATE {store.names.table} SET later = 'x' WHERE `key` = %s", key, database=name)
            read = f"SELECT later FROM {store.names.table} WHERE `key` = %s"
            return lambda: mariadb.sql(read, key, database=name) == [("x",)]

        make = lambda *_: moved_clock(open_store(database), passed)
        return Bench(make, make, mode=mode, advance=passed.append, unknown=column)

    return made


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_mysql_store_conforms_on_mariadb(check, mode, bench):
    check.run(bench(mode))


@each("check", CHECKS)
def test_the_mysql_store_conforms_by_the_statements_for_mysql(check, bench, monkeypatch):
    as_mysql = schema.MYSQL._replace(mariadb=False)
    monkeypatch.setattr(schema.Flavor, "collation", "utf8mb4_nopad_bin")  # MariaDB has not the other one
    monkeypatch.setattr(schema, "flavor_of", lambda _: as_mysql)
    check.run(bench("sync"))


@pytest.mark.parametrize("check", CLOCKS)
def test_the_mysql_store_on_its_own_clock_conforms(check, database):
    (one,) = [c for c in CHECKS if c.name == check]
    one.run(Bench(lambda _: open_store(database), advance=time.sleep))
