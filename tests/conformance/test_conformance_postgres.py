"""The PostgreSQL store passes the conformance suite on both versions."""

import time
import uuid

import pytest

from onceward.stores import open_store
from onceward.testing.conformance import CHECKS, MODES, Bench
from tables import each

pytestmark = pytest.mark.sampled(mode=1)


@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_postgres_store_conforms(check, mode, postgres):
    def column(store, key):
        postgres.sql(f"ALTER TABLE {store.names.table} ADD COLUMN IF NOT EXISTS later text", database="test")
        postgres.sql(f"UPDATE {store.names.table} SET later = 'x' WHERE key = %s", key, database="test")
        read = f"SELECT later FROM {store.names.table} WHERE key = %s"
        return lambda: postgres.sql(read, key, database="test") == [("x",)]

    name = f"ledger_{uuid.uuid4().hex}"
    url = f"{postgres.url}?schema={name}&options=-csearch_path%3D{name},pg_catalog"
    make = lambda *_: open_store(url)
    check.run(Bench(make, make, mode=mode, advance=postgres.own_clock(name), unknown=column))


@pytest.mark.parametrize("check", ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"])
def test_the_postgres_store_on_its_own_clock_conforms(check, schema):
    (one,) = [c for c in CHECKS if c.name == check]
    one.run(Bench(lambda _: open_store(schema), advance=time.sleep))
