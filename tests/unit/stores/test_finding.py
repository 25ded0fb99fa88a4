"""Finding records in SQLite by status and age, by the chain of a key and when messages are due: the SQL, the index, and old files."""

import contextlib
import itertools
import re
import sqlite3

import pytest

from fixtures import closing_fixture
from onceward import Once
from onceward.core import comparisons, drivers, origin, selections, views
from onceward.core.record import COMPLETED, Record
from onceward.stores import chains, contract, memory, sqlite
from onceward.stores.ledger import Ledger
from onceward.stores.sqlite.schema import DUE_INDEX
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing.bench import claim_of
from onceward.testing.clock import ManualClock
from tables import each

NOW = 1000.0
TIMES = (NOW - 60, NOW - 59, NOW)


def lattice():
    """Records of every status, also one of a newer version, with each of their times before, at and after a bound."""
    statuses = ("IN_PROGRESS", "COMPLETED", "RELEASED", "PARKED", "FROZEN")
    some = claim_of("k", "o", fence=1).at(NOW)
    for n, (status, made, lease, written, ends) in enumerate(
        itertools.product(statuses, TIMES, (*TIMES, NOW + 5), (*TIMES, None), (NOW, NOW + 1, None))
    ):
        times = {"created_at": made, "lease_until": lease, "updated_at": written, "expires_at": ends}
        yield some._replace(key=f"k{n:04}", status=status, **times)


RECORDS = list(lattice())
CRITERIA = [
    views.Criteria(states, older, newer)
    for states in ((), *((state,) for state in views.STATES), ("PARKED", "LAPSED"))
    for older, newer in ((None, None), (59.0, None), (None, 59.0), (60.0, 60.0), (0.0, None))
]


@pytest.fixture
def path(tmp_path):
    """A ledger with a record of every kind, at the time NOW."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path, clock=ManualClock(NOW))
    drivers.drive(store.load("?"), store)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        marks = ", ".join("?" * len(Record._fields))
        connection.executemany(f"INSERT INTO onceward ({', '.join(Record._fields)}) VALUES ({marks})", RECORDS)
        connection.commit()
    return path


filled = closing_fixture(lambda path: SqliteStore(path, clock=ManualClock(NOW)))


def found(store, criteria, limit=10_000):
    page = drivers.drive(store.select(selections.ByKey(criteria=criteria), None, limit), store)
    return [record.key for record in page.records]


@pytest.mark.slow
@each("criteria", CRITERIA)
def test_sqlite_finds_what_python_finds(filled, criteria):
    wanted = [one.key for one in RECORDS if comparisons.meets(one, criteria.clause, NOW)]
    assert found(filled, criteria) == wanted


@pytest.mark.parametrize("make", [memory.MemoryStore, None], ids=["memory", "sqlite"])
def test_the_ledger_finds_by_several_statuses_and_an_age(make, tmp_path, clock):
    once = Once(make(clock) if make else SqliteStore(tmp_path / "a.db", clock=clock), name="n", clock=clock)
    once.acquire("old").park("why")
    once.acquire("gone", lease=1.0)
    clock.advance(3600.0)
    once.acquire("new").park("why")
    once.acquire("given back").release()
    keys = lambda *criteria: [record.key for record, _ in once.ledger.records("n:", *criteria)]
    assert keys("PARKED", 60.0) == ["n:old"]
    assert keys("PARKED", None, 60.0) == ["n:new"]
    assert keys(["PARKED", "LAPSED"]) == ["n:gone", "n:new", "n:old"]
    once.close()


@each("criteria", [("done",), (None, -1.0), (None, None, float("nan")), ("PARKED", 1e12)])
def test_an_unknown_status_and_a_senseless_age_are_refused(criteria, clock):
    once = Once(memory.MemoryStore(clock))
    with pytest.raises(ValueError, match=r"choose one of COMPLETED|give from 0 s to 100 years"):
        next(once.ledger.pages("", *criteria))


def test_a_page_of_a_namespace_looks_at_the_rows_of_its_request_only(path):
    reader = sqlite.finding.reader(NOW)
    statement = reader.statement(selections.ByKey("k", views.Criteria(("COMPLETED",), 60.0)), None, 10, None)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", reader.values)]
    assert any(step.startswith("SEARCH t USING INDEX") and step.endswith("(key=?)") for step in plan), plan


def put(store, key, parent=None, root=None):
    headers = {"onceward-parent": parent, "onceward-root": root}
    assert drivers.drive(store.insert(claim_of(key, "a", origin=origin.provenance_in(headers.get).origin)), store).won


def tree(node):
    return node.key if not node.children else {node.key: [tree(child) for child in node.children]}


def shown(key, *stores, **options):
    chain = chains.chain_of(key, [Ledger(store) for store in stores], **options)
    assert not chain.unread
    return [tree(top) for top in chain.tops]


CHAIN = [("order", None), ("pay", "order"), ("ship", "order"), ("book", "pay"), ("mail", "ship")]
WHOLE = [{"order": [{"pay": ["book"]}, {"ship": ["mail"]}]}]


@pytest.mark.parametrize("ledgers", [1, 3])
@pytest.mark.parametrize("key", [key for key, _ in CHAIN])
def test_each_key_of_a_chain_shows_all_of_it_also_in_several_ledgers(store, clock, key, ledgers):
    stores = [store, *(memory.MemoryStore(clock) for _ in range(ledgers - 1))]
    put(store, "other")
    put(store, "other-pay", "other", "other")
    for number, (one, parent) in enumerate(CHAIN):
        put(stores[number % ledgers], one, parent, "order")
    assert shown(key, *stores, scan=ledgers > 1) == WHOLE


def test_what_is_missing_is_shown_by_its_name(store):
    put(store, "mail", "ship", "order")
    put(store, "pay", "order", "order")
    assert shown("mail", store) == [{"order": [{"ship": ["mail"]}, "pay"]}]
    chain = chains.chain_of("mail", [Ledger(store)])
    assert [len(chain.tops[0].links), len(chain.tops[0].children[0].links)] == [0, 0]


def test_forged_headers_that_make_a_circle_end(store):
    for one, parent in (("a", "c"), ("b", "a"), ("c", "b"), ("self", "self")):
        put(store, one, parent, "a")
    tops = shown("a", store)
    assert "self" in tops
    assert str(tops).count("'b'") == 1


def test_a_key_that_is_nowhere_is_not_found(store):
    with pytest.raises(contract.NotFound, match="nothing: no such key in sqlite:"):
        shown("nothing", store)


def test_a_chain_with_more_keys_than_asked_for_is_cut(store):
    put(store, "k0")
    for n in range(1, 20):
        put(store, f"k{n}", "k0", "k0")
    chain = chains.chain_of("k0", [Ledger(store)], limit=10)
    assert chain.cut
    assert len(chain.tops[0].children) == 9


def complete(store, key, due):
    held = drivers.drive(store.insert(claim_of(key, "a")), store).record
    write = claim_of(key, "a", beat=1, fence=held.fence, status=COMPLETED, keep=None, unsent="{}", due=due)
    assert drivers.drive(store.swap(write, held), store).won


def due_now(store, limit=10):
    return drivers.drive(store.select(selections.DueWithin(), None, limit), store)


@pytest.mark.slow
def test_ten_thousand_completed_records_are_not_read(store, sql):
    drivers.drive(store.insert_many([claim_of(f"k{n}", "a", status=COMPLETED) for n in range(10_000)]), store)
    reader = sqlite.finding.reader(1e12)
    statement = reader.statement(selections.DueWithin(), None, 100, None)
    plan = [row[3] for row in sql(f"EXPLAIN QUERY PLAN {statement}", *reader.values)]
    reads = [one for one in plan if one.startswith(("SCAN", "SEARCH")) and " x" not in one]
    assert len([one for one in plan if re.match(rf"SEARCH t USING (COVERING )?INDEX {DUE_INDEX} \(", one)]) == 2, plan
    assert all(DUE_INDEX in one for one in reads if "onceward" in one), reads


def test_a_row_that_is_no_record_is_named_and_hides_no_other(store, sql, clock):
    for number in range(3):
        complete(store, f"k{number}", 1.0 + number)
    sql("UPDATE onceward SET beat = 'x' WHERE key = 'k1'")
    clock.advance(10.0)
    page = due_now(store)
    assert [record.key for record in page.records] == ["k0", "k2"]
    assert [one.key for one in page.damaged] == ["k1"]
