"""Finding due messages in SQLite: by the index alone, in old files, and beside rows that are no records."""

import re

import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED
from onceward.core.selections import DueWithin
from onceward.stores.capabilities import MIGRATE, OUTBOX
from onceward.stores.sqlite import finding
from onceward.stores.sqlite.schema import DUE_INDEX
from onceward.testing.bench import claim_of


def complete(store, key, due):
    held = drive(store.insert(claim_of(key, "a")), store).record
    write = claim_of(key, "a", beat=1, fence=held.fence, status=COMPLETED, keep=None, unsent="{}", due=due)
    assert drive(store.swap(write, held), store).won


def found(store, limit=10):
    return drive(store.select(DueWithin(), None, limit), store)


@pytest.mark.slow
def test_ten_thousand_completed_records_are_not_read(store, sql):
    drive(store.insert_many([claim_of(f"k{n}", "a", status=COMPLETED) for n in range(10_000)]), store)
    reader = finding.reader(1e12)
    statement = reader.statement(DueWithin(), None, 100, None)
    plan = [row[3] for row in sql(f"EXPLAIN QUERY PLAN {statement}", *reader.values)]
    reads = [one for one in plan if one.startswith(("SCAN", "SEARCH")) and " x" not in one]
    assert len([one for one in plan if re.match(rf"SEARCH t USING (COVERING )?INDEX {DUE_INDEX} \(", one)]) == 2, plan
    assert all(DUE_INDEX in one for one in reads if "onceward" in one), reads


def test_a_former_versions_file_refuses_messages_until_it_is_migrated(store, sql):
    drive(store.load("?"), store)
    sql(f"DROP INDEX {DUE_INDEX}")
    with pytest.raises(StoreError, match=r"no index of messages, .* `onceward migrate --store sqlite:///"):
        drive(OUTBOX.require(store)(), store)
    with pytest.raises(StoreError, match=f"no such index: {DUE_INDEX}"):
        found(store)
    assert (f"index {DUE_INDEX}", True) in drive(MIGRATE.require(store)(), store)
    drive(OUTBOX.require(store)(), store)
    assert found(store).records == []


def test_a_row_that_is_no_record_is_named_and_hides_no_other(store, sql, clock):
    for number in range(3):
        complete(store, f"k{number}", 1.0 + number)
    sql("UPDATE onceward SET beat = 'x' WHERE key = 'k1'")
    clock.advance(10.0)
    page = found(store)
    assert [record.key for record in page.records] == ["k0", "k2"]
    assert [one.key for one in page.damaged] == ["k1"]
