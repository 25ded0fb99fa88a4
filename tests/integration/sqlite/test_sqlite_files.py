"""What can happen to the files of an SQLite ledger: moved, replaced, deleted, damaged; who may read them; and forks."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onceward import Once, ResultNotRecorded, StoreError
from onceward.core.drivers import drive
from onceward.core.selections import ByKey
from places import SOURCES
from servers.needs import missing

SOON = 0.03  # seconds after which a worker looks again where its file is


@pytest.fixture
def once(path):
    made = Once(f"sqlite:///{path}")
    made.run("k", int)
    yield made
    made.close()


def beside(path, suffix):
    return path.with_name(path.name + suffix)


def move(path):
    path.rename(beside(path, ".old"))


def replace(path):
    other = beside(path, ".new")
    made = Once(f"sqlite:///{other}")
    made.run("other", int)
    made.close()
    shutil.move(other, path)


@pytest.mark.parametrize("what", [move, replace, Path.unlink])
def test_worker_whose_file_was_moved_or_deleted_is_told_and_runs_nothing(once, path, what):
    what(path)
    time.sleep(SOON)
    for call in (
        lambda: once.run("new", pytest.fail),
        lambda: once.run("k", pytest.fail),
        lambda: list(once.ledger.records()),
    ):
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            call()
    assert path.exists() == (what is replace), "nothing is made in its place"


def test_a_worker_that_forked_or_failed_makes_no_new_file_for_a_gone_one(once, path):
    once.store._file.close()  # as before a fork
    path.unlink()
    with pytest.raises(StoreError, match="moved, deleted or replaced"):
        once.run("k", pytest.fail)
    assert not path.exists()
    once.close()
    assert once.run("k", int) == 0, "a worker that was closed begins anew"


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_worker_whose_wal_was_deleted_is_told_and_loses_nothing(once, path, suffix):
    for number in range(5):
        once.run(number, int)
    beside(path, suffix).unlink()
    time.sleep(SOON)
    with pytest.raises(StoreError, match=f"{suffix}.* deleted"):
        once.run("new", pytest.fail)
    once.close()
    assert once.ledger.stats()["total"] == 6


@pytest.mark.parametrize("target", ["ledger.db", "link.db"])
def test_a_new_ledger_is_its_owners_alone(tmp_path, target):
    (tmp_path / "link.db").symlink_to("ledger.db")
    old = os.umask(0)
    try:
        once = Once(f"sqlite:///{tmp_path}/{target}")
        once.run("k", int)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm", "link.db"), 0o600)
        once.close()
    finally:
        os.umask(old)


DAMAGE = [
    "UPDATE onceward SET result = x'00ff' WHERE key LIKE '%bad'",
    "UPDATE onceward SET fence = 'text' WHERE key LIKE '%bad'",
    "UPDATE onceward SET expires_at = 'soon' WHERE key LIKE '%bad'",
    "UPDATE onceward SET error = CAST(x'6361726420ff' AS TEXT) WHERE key LIKE '%bad'",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_is_clear_error_that_names_its_key_and_others_go_on(once, path, damage):
    once.acquire("bad").complete("card 4111")
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(StoreError, match="claim:bad: the ledger has a record of this key that cannot be read") as told:
        once.acquire("bad")
    assert "card" not in str(told.value)
    assert "card" not in repr(told.value.__cause__)
    assert not told.value.transient
    assert once.run("other", int) == 0
    page = drive(once.store.select(ByKey(), None, 100), once.store)
    assert [one.key for one in page.damaged] == ["claim:bad"]
    assert len(page.records) == 2
    assert drive(once.store.delete(page.damaged[0]), once.store).won
    assert not drive(once.store.delete(page.damaged[0]), once.store).won
    once.acquire("bad").complete()


PAUSED = """
import sys
from onceward import Once
from onceward.stores.sqlite import requests as sqlite_requests
insert = sqlite_requests.insert
def paused(write, connection, now):
    if write.key == "claim:k":
        print("paused", flush=True); sys.stdin.readline()
    return insert(write, connection, now)
sqlite_requests.insert = paused
once = Once("sqlite:///" + sys.argv[1])
once.run("set up", int)
print(once.acquire("k").fence)
"""


def test_a_claim_paused_before_its_insert_gets_a_fence_beyond_the_cleared(path):
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "paused\n"
    once = Once(f"sqlite:///{path}")
    time.sleep(0.05)
    fence = once.acquire("k").fence
    once.ledger.clear("claim:k", live=True)
    out, _ = process.communicate("\n", timeout=120)
    assert int(out) > fence
    once.close()


@pytest.fixture
def mounted(tmp_path):
    """A small file system of its own, that can be filled up and made read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        missing("a file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder, mode):
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def test_a_file_system_that_turns_read_only_gives_the_caller_its_result_and_runs_nothing_more(mounted):
    once = Once(f"sqlite:///{mounted}/ledger.db", lease=1)

    def handle():
        once.close()
        remount(mounted, "ro")
        return "the effect"

    with pytest.raises(ResultNotRecorded) as raised:
        once.run("k", handle)
    assert raised.value.result == "the effect"
    with pytest.raises(StoreError, match=r"read-only|cannot be opened"):
        once.run("other", pytest.fail)
    remount(mounted, "rw")
    assert once.run("other", int) == 0
    once.close()


def fill(folder):
    with open(folder / "fill", "wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_full_disk_at_claim_is_clear_error_and_nothing_runs_or_is_lost(mounted):
    once = Once(f"sqlite:///{mounted}/ledger.db")
    once.run("before", str, "x" * 1000)
    fill(mounted)
    with pytest.raises(StoreError, match=r"disk is full|disk failed"):
        for number in range(100):
            once.run(number, str, "y" * 4000)
    os.unlink(mounted / "fill")
    assert once.run("before", str) == "x" * 1000
    assert once.run("after", int) == 0
    once.close()


def test_a_full_disk_at_the_completion_is_waited_out_while_claim_lasts(mounted):
    once = Once(f"sqlite:///{mounted}/ledger.db", lease=20)
    once.run("warm up", int)

    def handle():
        fill(mounted)
        threading.Timer(0.4, os.unlink, [mounted / "fill"]).start()
        return "y" * 100_000

    assert once.run("k", handle) == "y" * 100_000
    assert once.run("k", handle) == "y" * 100_000
    once.close()
