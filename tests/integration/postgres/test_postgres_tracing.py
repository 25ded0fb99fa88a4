"""The chain of a key in PostgreSQL: by the index alone, also in an old ledger, whatever the keys are."""

import pytest

from onceward.core.drivers import drive
from onceward.core.origin import provenance_in
from onceward.core.selections import ChainOf
from onceward.stores import open_store
from onceward.stores.capabilities import MIGRATE
from onceward.stores.chains import chain_of
from onceward.stores.contract import NoIndex
from onceward.stores.ledger import Ledger
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of


@pytest.fixture
def store(schema):
    store = open_store(schema)
    yield store
    store.close()


@pytest.fixture
def sql(postgres):
    return lambda statement, *values: postgres.sql(statement, *values, database="test")


def came(root, parent):
    return provenance_in({"onceward-root": root, "onceward-parent": parent}.get).origin


def traced(store, root, limit=100, *, scan=False):
    return drive(store.select(ChainOf(root, scan=scan), None, limit), store)


@pytest.mark.parametrize("analyzed", [True, False])
def test_the_records_of_other_chains_are_not_read(store, sql, analyzed):
    writes = [claim_of(f"k{n:05}", "a", origin=came(f"root{n // 10}", f"k{n - 1:05}")) for n in range(10_000)]
    drive(store.insert_many(writes), store)
    if analyzed:
        sql(f"ANALYZE {store.names.table}")
    query = store._page(ChainOf("root7"), None, 100, "origin", None)
    plan = "\n".join(row[0] for row in store.exchange(RawQuery(f"EXPLAIN {query.text}", *query.values)))
    assert "Seq Scan" not in plan
    assert "_pkey" not in plan
    assert f"{store.names.plain}_origin" in plan
    assert [record.key for record in traced(store, "root7").records] == [f"k{n:05}" for n in range(70, 80)]


@pytest.mark.parametrize("root", ['a","parent":"b', "a'b", "é" * 1024, "a\\", "a,", "$1", "%s"])
def test_a_root_of_any_text_is_found(store, root):
    drive(store.insert(claim_of("one", "a", origin=came(root, "p"))), store)
    drive(store.insert(claim_of("two", "a", origin=came(root + "x", "p"))), store)
    assert [record.key for record in traced(store, root).records] == ["one"]


def test_pages_follow_each_other_without_gaps(store):
    drive(store.insert_many([claim_of(f"k{n:02}", "a", origin=came("root", "p")) for n in range(25)]), store)
    keys, after = [], None
    while True:
        page = drive(store.select(ChainOf("root", scan=False), after, 4), store)
        keys += [record.key for record in page.records]
        after = page.next
        if after is None:
            break
    assert keys == [f"k{n:02}" for n in range(25)]


def test_a_former_versions_ledger_is_traced_after_migrate_or_by_reading_it(store, sql):
    drive(store.insert(claim_of("pay", "a", origin=came("order", "order"))), store)
    sql(f"DROP INDEX {store.names.index('origin')}")
    with pytest.raises(NoIndex, match=r"no index .*onceward migrate"):
        traced(store, "order")
    assert [record.key for record in traced(store, "order", scan=True).records] == ["pay"]
    assert (f"index {store.names.index('origin')}", True) in drive(MIGRATE.needed(store)(), store)
    assert [record.key for record in traced(store, "order").records] == ["pay"]


def test_a_chain_over_postgresql_and_another_ledger(store, tmp_path):
    other = open_store(f"sqlite:///{tmp_path}/orders.db")
    drive(other.insert(claim_of("order", "a")), other)
    drive(store.insert(claim_of("pay", "a", origin=came("order", "order"))), store)
    drive(other.insert(claim_of("ship", "a", origin=came("order", "pay"))), other)
    for key in ("order", "pay", "ship"):
        (top,) = chain_of(key, [Ledger(store), Ledger(other)]).tops
        assert (top.key, top.children[0].key, top.children[0].children[0].key) == ("order", "pay", "ship")
    other.close()
