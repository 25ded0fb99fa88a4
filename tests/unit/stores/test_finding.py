"""Finding records in SQLite by status and age, and when messages are due: the SQL, the index, and old files."""

import contextlib
import itertools
import sqlite3

import pytest

from fixtures import closing_fixture
from onceward import Once
from onceward.core import comparisons, drivers, selections, views
from onceward.core.record import Record
from onceward.stores import memory, sqlite
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
