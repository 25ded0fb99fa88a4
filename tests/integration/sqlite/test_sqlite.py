"""The embedded ledger: durable, shared, and clear about everything that a file can suffer."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Once, ResultNotRecorded, StoreError
from onceward.stores import open_store
from places import SOURCES
from tables import each
from waiting import until


def rows(path, sql="SELECT key, status FROM onceward ORDER BY key", *values):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute(sql, values).fetchall()
        connection.commit()
        return found


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=NORMAL", 1)])
def test_the_file_is_in_wal_mode_and_durable_unless_its_url_says_less(path, option, level):
    once = Once(f"sqlite:///{path}{option}")
    assert not path.exists(), "nothing is opened before the first use"
    once.run("k", int)
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]
    for connection in (once.store._file.reader(), once.store._file.writer()):
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
    once.close()


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store("sqlite:///a%20b/c.db").path == str(tmp_path / "a b" / "c.db")
    assert open_store("sqlite:////x/y.db?timeout=1.5&synchronous=normal").path == "/x/y.db"


@each(
    "url",
    [
        "orders.db",
        "sqlite:///",
        "sqlite://host/x.db",
        "sqlite:///:memory:",
        "sqlite:///x.db?timeout=nan",
        "sqlite:///x.db?synchronous=OFF",
        "sqlite:///x.db?mode=ro",
        "memory:?a=1",
        "mongodb://x",
    ],
)
def test_a_url_that_means_nothing_is_refused_at_once(url):
    with pytest.raises(ValueError):
        Once(url)


def test_a_missing_folder_is_refused_and_not_made(tmp_path):
    with pytest.raises(StoreError, match=r"does its folder exist"):
        Once(f"sqlite:///{tmp_path}/no/ledger.db").run("k", pytest.fail)
    assert list(tmp_path.iterdir()) == []


def no_database(path):
    path.write_bytes(b"not a database, but somebody's precious notes\n" * 50)


def damage(path):
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def newer(path):
    rows(path, "UPDATE onceward_meta SET value = '2' WHERE name = 'version'")


@pytest.mark.parametrize(
    ("spoil", "says"), [(no_database, "not an SQLite database"), (damage, "damaged|refused"), (newer, "newer onceward")]
)
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(once, path, spoil, says):
    for number in range(200):
        once.run(number, str, "x" * 100)
    once.close()
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=says):
        Once(f"sqlite:///{path}").run(7, pytest.fail)
    assert path.read_bytes() == before


def test_a_file_locked_by_somebody_else_is_a_clear_error_after_timeout(once, path):
    once.run("set up", int)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    hasty = Once(f"sqlite:///{path}?timeout=0.05")
    with pytest.raises(StoreError, match=r"timeout=") as locked:
        hasty.run("k", pytest.fail)
    assert locked.value.transient
    assert hasty.run("set up", int) == 0, "a duplicate needs no lock"
    hasty.close()
    holder.close()


def test_many_callers_share_their_commits(once):
    once.run("set up", int)
    before, barrier = once.store._commits, threading.Barrier(64)

    def work(number):
        barrier.wait()
        once.run(number, int)

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(work, range(64)))
    assert len(list(once.ledger.records())) == 65
    assert once.store._commits - before < 128


def test_a_damaged_record_fails_its_own_write_and_none_that_is_committed_with_it(once, path):
    going, told = threading.Event(), {}

    def work(number):
        try:
            told[number] = once.run(number, going.wait)
        except ResultNotRecorded as error:
            told[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(list(once.ledger.records())) == 8)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("UPDATE onceward SET fence = 'x' WHERE key LIKE '%:3'")
        other.execute("BEGIN IMMEDIATE")
        going.set()
        until(lambda: len(once.store._queue) == 7)  # the first one waits for the file
        other.execute("ROLLBACK")
    other.close()
    for thread in threads:
        thread.join()
    assert [isinstance(told[number], ResultNotRecorded) for number in range(8)] == [number == 3 for number in range(8)]


def test_expired_rows_are_purged_by_the_writes_themselves(once, path):
    for number in range(150):
        once.acquire(number, lease=0.5, retention=0.5).complete()
    time.sleep(0.6)
    for number in range(150):
        once.run(number, int)
    assert [key for (key,) in rows(path, "SELECT key FROM onceward") if key.startswith("claim:")] == []


def test_the_first_transaction_of_a_process_is_on_the_ledgers_clock(once, path):
    once.run("k", int)
    fresh = Once(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    with fresh.transaction("t", connection):
        pass
    connection.close()
    record, now = once.ledger.show("claim:t")
    assert abs(record.created_at - now) < 60
    fresh.close()


SHUTDOWN = """
import asyncio, atexit, sys, threading, time
from onceward import Once
once = Once("sqlite:///" + sys.argv[1], lease=0.3)
def slow(): time.sleep(0.5); return 1
async def slow_async(): await asyncio.sleep(0.5); return 1
kind = sys.argv[2]
if kind == "mid-handler":
    threading.Thread(target=lambda: once.run("a", slow), daemon=True).start()
    time.sleep(0.2)
elif kind == "loop closed while writing":
    async def main():
        for n in range(200):
            asyncio.create_task(once.run_async(n, slow_async))
        await asyncio.sleep(0)
    asyncio.run(main())
elif kind == "atexit":
    once.run("a", slow)
    atexit.register(lambda: print(once.run("b", slow)))
"""


@pytest.mark.parametrize("kind", ["mid-handler", "loop closed while writing", "atexit"])
def test_a_process_ends_quietly_whatever_is_under_way(path, kind):
    command = [sys.executable, "-W", "error", "-c", SHUTDOWN, path, kind]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SOURCES)}, stderr=subprocess.PIPE, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
