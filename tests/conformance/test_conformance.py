"""The conformance suite: our stores pass it, and broken ones do not."""

import contextlib
import itertools
import sqlite3
import time

import pytest

from onceward.core.clock import boottime
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite import clock as sqlite_clock
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing.conformance import CHECKS, MODES, Bench, NotConforming, conform
from stores.unknown_fields import check_unknown_fields_stay
from tables import each


@pytest.fixture
def files(tmp_path):
    numbers = itertools.count()
    return lambda: tmp_path / f"ledger {next(numbers)}.db"


@each("mode", MODES)
@each("check", CHECKS)
def test_the_memory_store_conforms(check, mode):
    check.run(Bench(MemoryStore, mode=mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@each("check", CHECKS)
def test_the_sqlite_store_conforms(check, mode, files):
    def again(store, clock):
        return SqliteStore(store.path, clock=clock)

    check.run(Bench(lambda clock: SqliteStore(files(), clock=clock), again, mode=mode))


def column(store, key):
    """Add a column, as a newer version does."""
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        if "later" not in [row[1] for row in connection.execute("PRAGMA table_info(onceward)")]:
            connection.execute("ALTER TABLE onceward ADD COLUMN later TEXT")
        connection.execute("UPDATE onceward SET later = 'x' WHERE key = ?", (key,))
        connection.commit()

    def stays():
        with contextlib.closing(sqlite3.connect(store.path)) as connection:
            return connection.execute("SELECT later FROM onceward WHERE key = ?", (key,)).fetchone() == ("x",)

    return stays


def test_a_write_keeps_the_fields_of_a_newer_version(files):
    class WritesAll(SqliteStore):
        def swap(self, write, seen):
            reply = yield from super().swap(write, seen)
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                connection.execute("UPDATE onceward SET later = NULL")
                connection.commit()
            return reply

    check_unknown_fields_stay(Bench(lambda clock: SqliteStore(files(), clock=clock)), column)
    with pytest.raises(NotConforming, match="keeps the fields that it does not name"):
        check_unknown_fields_stay(Bench(lambda clock: WritesAll(files(), clock=clock)), column)


@each("check", ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"])
def test_the_sqlite_store_on_its_own_clock_conforms(check, files, monkeypatch):
    passed = []
    monkeypatch.setattr(sqlite_clock, "boottime", lambda: boottime() + sum(passed))
    (one,) = [c for c in CHECKS if c.name == check]
    one.run(Bench(lambda clock: SqliteStore(files()), advance=passed.append))


def overwriting(store, write):
    store.records.pop(write.key, None)
    return MemoryStore._insert(store, write)


def purging_the_lapsed(store, limit):
    now = store._clock()
    gone = [key for key, record in store.records.items() if record.lease_until <= now][:limit]
    return len([store.records.pop(key) for key in gone])


def not_atomic(store, request):
    before = dict(store.records)
    time.sleep(0.001)
    now, store.records = store.records, before
    reply = request()
    store.records = {**now, **store.records}
    return reply


def ahead(store, clock):
    MemoryStore.__init__(store, lambda: clock() + 3600.0)


def changing(method, **changes):
    """Return a method that makes another write than it is asked for."""
    return lambda store, write, *seen: method(store, write._replace(**changes), *seen)


BROKEN = {
    "swap with another owner is refused": {"_matches": lambda _, held, seen: held.beat == seen.beat},
    "swap of an earlier beat is refused": {"_matches": lambda _, held, seen: held.owner == seen.owner},
    "insert of a key that is held is refused": {"_insert": overwriting},
    "reply's time is the store's clock's": {"__init__": ahead},
    "created_at is kept": {"_swap": changing(MemoryStore._swap, created_at=None)},
    "stamped with the time in microseconds": {"_insert": changing(MemoryStore._insert, fence=1)},
    "nothing is purged before it expires|purge deletes the expired records and no others": {
        "_purge": purging_the_lapsed
    },
    "exactly one insert is won": {"exchange": not_atomic},
}


@pytest.mark.slow
@each("what", BROKEN)
def test_a_broken_store_does_not_conform(what):
    with pytest.raises(NotConforming, match=what):
        conform(type("Broken", (MemoryStore,), BROKEN[what]))
