"""The PostgreSQL store passes the conformance suite on both versions."""

import time

import pytest

from onceward.stores import open_store
from onceward.testing.conformance import CHECKS, MODES, Bench

pytestmark = pytest.mark.sampled(mode=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_postgres_store_conforms(check, mode, moved, postgres):
    def column(store, key):
        postgres.sql(f"ALTER TABLE {store.names.table} ADD COLUMN IF NOT EXISTS later text", database="test")
        postgres.sql(f"UPDATE {store.names.table} SET later = 'x' WHERE key = %s", key, database="test")
        read = f"SELECT later FROM {store.names.table} WHERE key = %s"
        return lambda: postgres.sql(read, key, database="test") == [("x",)]

    url, move = moved
    make = lambda *_: open_store(url)
    check.run(Bench(make, make, mode=mode, advance=move, unknown=column))


@pytest.mark.parametrize("check", ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"])
def test_the_postgres_store_on_its_own_clock_conforms(check, schema):
    (one,) = [c for c in CHECKS if c.name == check]
    one.run(Bench(lambda _: open_store(schema), advance=time.sleep))
