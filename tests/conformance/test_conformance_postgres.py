"""The PostgreSQL store passes the conformance suite on both versions."""

import time

import pytest

from onceward.stores import open_store
from onceward.testing.conformance import CHECKS, MODES, Bench


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_postgres_store_conforms(check, mode, schema, postgres):
    def column(store, key):
        postgres.sql(f"ALTER TABLE {store.names.table} ADD COLUMN IF NOT EXISTS later text", database="test")
        postgres.sql(f"UPDATE {store.names.table} SET later = 'x' WHERE key = %s", key, database="test")
        read = f"SELECT later FROM {store.names.table} WHERE key = %s"
        return lambda: postgres.sql(read, key, database="test") == [("x",)]

    bench = Bench(
        lambda _: open_store(schema),
        lambda store, _: open_store(schema),
        mode=mode,
        advance=time.sleep,
        unknown=column,
    )
    check.run(bench)
