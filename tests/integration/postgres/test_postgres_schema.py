"""Making, printing, migrating and inspecting a ledger in PostgreSQL, the least rights of a worker, and what is read by an index alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fixtures import closing_fixture
from onceward import StoreError
from onceward.core.drivers import drive
from onceward.core.origin import provenance_in
from onceward.core.record import COMPLETED
from onceward.core.selections import ChainOf, DueWithin
from onceward.stores import open_store
from onceward.stores.capabilities import EXISTS, INSPECT, MIGRATE, PROVISION, TEMPLATE
from onceward.stores.postgres import schema as ledger_schema
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of

store = closing_fixture(open_store, "schema")


def findings(store):
    return {one.check: one for one in INSPECT.require(store)().findings()}


def test_init_makes_the_tables_once(store):
    assert not EXISTS.require(store)()
    make = PROVISION.require(store)
    assert [part.made for part in drive(make(frozenset()), store)] == [True] * 3
    assert EXISTS.require(store)()
    assert [part.made for part in drive(make(frozenset()), store)] == [False] * 3


def test_first_uses_at_once_make_one_ledger(schema):
    start = threading.Barrier(6)

    def use(number):
        store = open_store(schema)
        start.wait()
        owner = drive(store.insert(claim_of("key", f"o{number}")), store).record.owner
        store.close()
        return owner

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(use, range(6)))) == 1


def test_a_first_use_that_finds_the_table_locked_leaves_no_session_that_waits(store, monkeypatch, postgres, sql):
    drive(store.insert(claim_of("key", "a")), store)
    monkeypatch.setattr(ledger_schema, "ADDED", {"later": "text"})
    monkeypatch.setattr(ledger_schema, "MINOR", ledger_schema.MINOR + 1)
    newer = open_store(store.url)
    with psycopg.connect(postgres.url) as reader, reader.transaction():
        reader.execute(f"SELECT count(*) FROM {store.names.table}")
        with pytest.raises(StoreError, match="in use") as refused:
            drive(newer.load("key"), newer)
        assert refused.value.transient
        assert sql(f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{store.names.table}'::regclass") == []
    assert drive(newer.load("key"), newer).record
    newer.close()


def test_the_printed_sql_makes_a_ledger(store, postgres):
    text = TEMPLATE.require(store)()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(text)
    assert EXISTS.require(store)()
    assert drive(store.insert(claim_of("key", "a")), store).won


@pytest.fixture
def role(store, sql):
    """Make a role with these rights, and return its store."""
    made = []

    def role(*grants):
        name = f"role_{store.names.schema}"
        sql(f"CREATE ROLE {name} LOGIN")
        for grant in grants:
            sql(f"{grant} TO {name}")
        made.append(open_store(store.url.replace("postgres@", f"{name}@")))
        return made[-1]

    yield role
    for one in made:
        one.close()


def test_a_worker_needs_no_more_rights_than_printed(store, role):
    drive(PROVISION.require(store)(frozenset()), store)
    lines = TEMPLATE.require(store)().splitlines()
    grants = [line.removeprefix("-- ").partition(" TO worker")[0] for line in lines if line.startswith("-- GRANT")]
    worker = role(*grants)
    held = drive(worker.insert(claim_of("key", "a", lease=0.0, keep=0.0)), worker).record
    held = drive(worker.swap(next_of(held, lease=0.0, keep=0.0), held), worker).record
    assert drive(worker.purge(10), worker).deleted == 1
    held = drive(worker.insert(claim_of("key", "a")), worker).record
    assert drive(worker.delete(held), worker).won


def test_a_worker_without_rights_says_who_must_init(role):
    worker = role()
    with pytest.raises(StoreError, match="onceward init"):
        drive(worker.load("key"), worker)


def test_an_unknown_newer_schema_is_refused(store, sql):
    drive(store.load("?"), store)
    sql(f"UPDATE {store.names.meta} SET value = '2' WHERE name = 'version'")
    other = open_store(store.url)
    with pytest.raises(StoreError, match="version '2'"):
        drive(other.load("key"), other)
    other.close()


def test_a_newer_version_adds_its_columns_beside_an_older_one(store, monkeypatch, sql):
    held = drive(store.insert(claim_of("key", "a")), store).record
    monkeypatch.setattr(ledger_schema, "ADDED", {"later": "text"})
    monkeypatch.setattr(ledger_schema, "MINOR", ledger_schema.MINOR + 1)
    newer = open_store(store.url)
    parts = drive(MIGRATE.require(newer)(), newer)
    assert [part.what for part in parts if part.made] == ["its columns and indexes"]
    assert not any(part.made for part in drive(MIGRATE.require(newer)(), newer))
    sql(f"UPDATE {store.names.table} SET later = 'x'")
    minor = str(ledger_schema.MINOR)
    monkeypatch.undo()
    assert drive(store.swap(next_of(held), held), store).won  # the older version's code, which has run before
    again = open_store(store.url)
    assert drive(again.load("key"), again).record.beat == 1
    assert sql(f"SELECT later FROM {store.names.table}") == [("x",)]
    assert sql(f"SELECT value FROM {store.names.meta} WHERE name = 'layout'") == [(minor,)]
    newer.close()
    again.close()


def test_doctor_reads_the_settings_of_the_session(schema):
    store = open_store(f"{schema}&options=-csynchronous_commit%3Doff")
    drive(store.load("?"), store)
    assert {name: one.level for name, one in findings(store).items()} == {"synchronous_commit": "error"}
    store.close()


def test_doctor_compares_the_clock_of_a_server_with_its_hosts(moved):
    url, move = moved
    store = open_store(url)
    drive(store.load("key"), store)
    assert "clock" not in findings(store)
    move(60)
    assert "ahead of this host" in findings(store)["clock"].says
    store.close()


def test_a_database_that_cannot_keep_every_text_is_refused(postgres):
    postgres.sql("DROP DATABASE IF EXISTS of_latin1")
    postgres.sql("CREATE DATABASE of_latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    store = open_store(postgres.url.replace("/test", "/of_latin1"))
    with pytest.raises(StoreError, match=r"encoding LATIN1, .* ENCODING 'UTF8'"):
        drive(store.load("key"), store)
    assert not EXISTS.require(store)()
    store.close()


def test_a_key_with_a_nul_is_not_cut_off(store):
    with pytest.raises(StoreError, match="NUL"):
        drive(store.insert(claim_of("a\0b", "a")), store)
    assert drive(store.load("a"), store).record is None


def test_ten_thousand_completed_records_are_not_read(store, sql):
    drive(store.insert_many([claim_of(f"k{n:05}", "a", status=COMPLETED) for n in range(10_000)]), store)
    write = claim_of("left", "a", status=COMPLETED, keep=None, unsent="{}", due=-1.0)
    assert drive(store.insert(write), store).won
    sql(f"ANALYZE {store.names.table}")
    query = store.page(store.names, DueWithin(), None, 100, None)
    plan = "\n".join(row[0] for row in store.exchange(RawQuery(f"EXPLAIN {query.text}", *query.values)))
    assert "Seq Scan" not in plan
    assert plan.count(f"{store.names.plain}_due") == 2  # the page, and the next moment
    assert [record.key for record in drive(store.select(DueWithin(), None, 100), store).records] == ["left"]


def came(root, parent):
    return provenance_in({"onceward-root": root, "onceward-parent": parent}.get).origin


def traced(store, root):
    return drive(store.select(ChainOf(root), None, 100), store)


@pytest.mark.parametrize("analyzed", [True, False])
def test_the_records_of_other_chains_are_not_read(store, sql, analyzed):
    writes = [claim_of(f"k{n:05}", "a", origin=came(f"root{n // 10}", f"k{n - 1:05}")) for n in range(10_000)]
    drive(store.insert_many(writes), store)
    if analyzed:
        sql(f"ANALYZE {store.names.table}")
    query = store.page(store.names, ChainOf("root7"), None, 100, "origin")
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


def test_a_nul_anywhere_in_a_batch_is_refused(store):
    held = drive(store.insert_many([claim_of("a", "o"), claim_of("b", "o")]), store)
    for results in (["\0", "x"], ["\0", "\0"], ["x\0", None]):
        pairs = [
            (next_of(reply.record, result=result), reply.record) for reply, result in zip(held, results, strict=True)
        ]
        with pytest.raises(StoreError, match="NUL"):
            drive(store.swap_many(pairs), store)
