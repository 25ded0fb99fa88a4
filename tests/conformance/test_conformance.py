"""The conformance suite: our stores pass it, and broken ones do not."""

import contextlib
import itertools
import sqlite3
import time

import pytest

from onceward.core.clock import boottime
from onceward.core.record import Record, Reply, Write
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite import clock as sqlite_clock
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing.conformance import CHECKS, MODES, Bench, NotConforming, conform
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

    check.run(Bench(lambda clock: SqliteStore(files(), clock=clock), again, mode=mode, unknown=column))


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


def test_a_store_that_writes_whole_records_does_not_conform(files):
    class WritesAll(SqliteStore):
        def swap(self, write, seen):
            reply = yield from super().swap(write, seen)
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                connection.execute("UPDATE onceward SET later = NULL")
                connection.commit()
            return reply

    (one,) = [c for c in CHECKS if c.name == "swap_keeps_what_it_does_not_name"]
    with pytest.raises(NotConforming, match="keeps the fields that it does not name"):
        one.run(Bench(lambda clock: WritesAll(files(), clock=clock), unknown=column))


@each("check", ["times_are_the_stores", "every_reply_has_the_time", "purge_deletes_the_expired"])
def test_the_sqlite_store_on_its_own_clock_conforms(check, files, monkeypatch):
    passed = []
    monkeypatch.setattr(sqlite_clock, "boottime", lambda: boottime() + sum(passed))
    (one,) = [c for c in CHECKS if c.name == check]
    one.run(Bench(lambda clock: SqliteStore(files()), advance=passed.append))


# --- what it catches ----------------------------------------------------------------------------------------------


class IgnoresTheOwner(MemoryStore):
    def _matches(self, held: Record, seen: Record) -> bool:
        return held.beat == seen.beat


class IgnoresTheBeat(MemoryStore):
    def _matches(self, held: Record, seen: Record) -> bool:
        return held.owner == seen.owner


class Overwrites(MemoryStore):
    def _insert(self, write: Write) -> Reply:
        self.records.pop(write.key, None)
        return super()._insert(write)


class AnHourOff(MemoryStore):
    def __init__(self, clock) -> None:
        super().__init__(lambda: clock() + 3600.0)


class ForgetsCreation(MemoryStore):
    def _swap(self, write: Write, seen: Record) -> Reply:
        return super()._swap(write._replace(created_at=None), seen)


class Fences(MemoryStore):
    def _insert(self, write: Write) -> Reply:
        return super()._insert(write._replace(fence=write.fence or 1))


class PurgesTheLapsed(MemoryStore):
    def _purge(self, limit: int) -> int:
        now = self._clock()
        gone = [key for key, record in self.records.items() if record.lease_until <= now][:limit]
        return len([self.records.pop(key) for key in gone])


class NotAtomic(MemoryStore):
    def exchange(self, request):
        before = dict(self.records)
        time.sleep(0.001)
        now, self.records = self.records, before
        reply = request()
        self.records = {**now, **self.records}
        return reply


BROKEN = {
    IgnoresTheOwner: "swap with another owner is refused",
    IgnoresTheBeat: "swap of an earlier beat is refused",
    Overwrites: "insert of a key that is held is lost",
    AnHourOff: "reply's time is the store's clock's",
    ForgetsCreation: "created_at is kept",
    Fences: "stamped with the time in microseconds",
    PurgesTheLapsed: "nothing is purged before it expires|purge deletes the expired records and no others",
    NotAtomic: "exactly one insert is won",
}


@pytest.mark.slow
@each("store", BROKEN)
def test_a_broken_store_does_not_conform(store):
    with pytest.raises(NotConforming, match=BROKEN[store]):
        conform(store)
