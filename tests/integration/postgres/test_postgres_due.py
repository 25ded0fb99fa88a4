"""Finding due messages in PostgreSQL: by the index alone, also in an old ledger, and by the server's clock."""

import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED
from onceward.core.selections import DueWithin
from onceward.stores import open_store
from onceward.stores.capabilities import MIGRATE, OUTBOX
from onceward.stores.postgres.queries import DueQuery, RawQuery
from onceward.testing.bench import claim_of


@pytest.fixture
def store(schema):
    store = open_store(schema)
    yield store
    store.close()


@pytest.fixture
def sql(postgres):
    return lambda statement, *values: postgres.sql(statement, *values, database="test")


def test_ten_thousand_completed_records_are_not_read(store, sql):
    drive(store.insert_many([claim_of(f"k{n:05}", "a", status=COMPLETED) for n in range(10_000)]), store)
    write = claim_of("left", "a", status=COMPLETED, keep=None, unsent="{}", due=-1.0)
    assert drive(store.insert(write), store).won
    sql(f"ANALYZE {store.names.table}")
    query = DueQuery(store.names.table, None, 100, 0.0)
    plan = "\n".join(row[0] for row in store.exchange(RawQuery(f"EXPLAIN {query.text}", *query.values)))
    assert "Seq Scan" not in plan
    assert plan.count(f"{store.names.plain}_due") == 2  # the page, and the next moment
    assert [record.key for record in drive(store.select(DueWithin(), None, 100), store).records] == ["left"]


def test_a_former_versions_ledger_refuses_messages_until_it_is_migrated(store, sql):
    drive(OUTBOX.needed(store)(), store)
    sql(f"DROP INDEX {store.names.index('due')}")
    with pytest.raises(StoreError, match=r"no index of messages, .*`onceward migrate --store postgresql://"):
        drive(OUTBOX.needed(store)(), store)
    assert (f"index {store.names.index('due')}", True) in drive(MIGRATE.needed(store)(), store)
    drive(OUTBOX.needed(store)(), store)


def test_an_index_of_another_schemas_ledger_is_not_taken_for_its_own(store, sql, schema, postgres):
    drive(OUTBOX.needed(store)(), store)
    other = open_store(schema.replace("?schema=", "?schema=other_"))
    drive(OUTBOX.needed(other)(), other)
    path = f"{store.names.schema},{other.names.schema}"
    sql(f"DROP INDEX {store.names.index('due')}")
    both = open_store(f"{postgres.url}?options=-csearch_path%3D{path}")
    with pytest.raises(StoreError, match="no index of messages"):
        drive(OUTBOX.needed(both)(), both)
    drive(MIGRATE.needed(both)(), both)
    drive(OUTBOX.needed(both)(), both)
    drive(OUTBOX.needed(other)(), other)  # which keeps its own
    both.close()
    other.close()
