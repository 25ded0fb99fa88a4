"""What PostgreSQL reads by an index alone, also in an old ledger; and lists, column by column, that come back as they were."""

import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.core.origin import provenance_in
from onceward.core.record import COMPLETED
from onceward.core.selections import ChainOf, DueWithin
from onceward.stores.capabilities import MIGRATE, OUTBOX
from onceward.stores.contract import NoIndex
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of


def test_ten_thousand_completed_records_are_not_read(store, sql):
    drive(store.insert_many([claim_of(f"k{n:05}", "a", status=COMPLETED) for n in range(10_000)]), store)
    write = claim_of("left", "a", status=COMPLETED, keep=None, unsent="{}", due=-1.0)
    assert drive(store.insert(write), store).won
    sql(f"ANALYZE {store.names.table}")
    query = store._page(DueWithin(), None, 100, None, None)
    plan = "\n".join(row[0] for row in store.exchange(RawQuery(f"EXPLAIN {query.text}", *query.values)))
    assert "Seq Scan" not in plan
    assert plan.count(f"{store.names.plain}_due") == 2  # the page, and the next moment
    assert [record.key for record in drive(store.select(DueWithin(), None, 100), store).records] == ["left"]


def test_a_former_versions_ledger_refuses_messages_until_it_is_migrated(store, sql):
    drive(OUTBOX.require(store)(), store)
    sql(f"DROP INDEX {store.names.index('due')}")
    with pytest.raises(StoreError, match=r"no index of messages, .*`onceward migrate --store postgresql://"):
        drive(OUTBOX.require(store)(), store)
    assert (f"index {store.names.index('due')}", True) in drive(MIGRATE.require(store)(), store)
    drive(OUTBOX.require(store)(), store)


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


def test_a_former_versions_ledger_is_traced_after_migrate_or_by_reading_it(store, sql):
    drive(store.insert(claim_of("pay", "a", origin=came("order", "order"))), store)
    sql(f"DROP INDEX {store.names.index('origin')}")
    with pytest.raises(NoIndex, match=r"no index .*onceward migrate"):
        traced(store, "order")
    assert [record.key for record in traced(store, "order", scan=True).records] == ["pay"]
    assert (f"index {store.names.index('origin')}", True) in drive(MIGRATE.require(store)(), store)
    assert [record.key for record in traced(store, "order").records] == ["pay"]


def test_a_nul_anywhere_in_a_batch_is_refused(store):
    held = drive(store.insert_many([claim_of("a", "o"), claim_of("b", "o")]), store)
    for results in (["\0", "x"], ["\0", "\0"], ["x\0", None]):
        pairs = [
            (next_of(reply.record, result=result), reply.record) for reply, result in zip(held, results, strict=True)
        ]
        with pytest.raises(StoreError, match="NUL"):
            drive(store.swap_many(pairs), store)
