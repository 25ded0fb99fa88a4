"""The embedded ledger: durable, shared, and clear about everything that a file can suffer."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from onceward import Completed, LeaseLost, Once, ResultNotRecorded, StoreError
from onceward.stores import open_store
from tables import each
from waiting import until


@pytest.fixture
def once(path):
    made = Once(f"sqlite:///{path}")
    yield made
    made.close()


def one():
    return 1


def fail_if_run():
    pytest.fail("it ran")


def rows(path, sql="SELECT key, status FROM onceward ORDER BY key"):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def python(code, *args, cwd=None):
    import onceward

    src = os.path.dirname(os.path.dirname(onceward.__file__))
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": src},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- the file ---------------------------------------------------------------------------------------------------------------


def test_the_file_is_in_wal_mode_and_every_connection_of_store_is_durable(once, path):
    once.run("k", one)
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]
    for connection in (once.store._file.reader(), once.store._file.writer()):
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_durability_can_be_traded_for_speed_by_the_url(path):
    once = Once(f"sqlite:///{path}?synchronous=NORMAL")
    once.run("k", one)
    assert once.store._file.writer().execute("PRAGMA synchronous").fetchone() == (1,)
    once.close()


def test_nothing_is_opened_before_the_first_use(tmp_path):
    Once(f"sqlite:///{tmp_path}/new.db").close()
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_may_live_in_a_file_with_tables_of_the_user(once, path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.commit()
    connection.close()
    assert once.run("k", one) == 1
    assert rows(path, "SELECT * FROM orders") == [(1,)]


# --- URLs ---------------------------------------------------------------------------------------------------------------------


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store("sqlite:///a b/c.db").path == str(tmp_path / "a b" / "c.db")
    assert open_store("sqlite:///a%20b/c.db").path == str(tmp_path / "a b" / "c.db")
    assert open_store("sqlite:////x/y.db").path == "/x/y.db"
    assert open_store("sqlite:////x/y.db?timeout=1.5&synchronous=normal").path == "/x/y.db"


@each(
    "url",
    [
        "",
        "orders.db",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x.db",
        "sqlite:///:memory:",
        "sqlite:///x.db?timeout=soon",
        "sqlite:///x.db?timeout=-1",
        "sqlite:///x.db?timeout=nan",
        "sqlite:///x.db?timeout=inf",
        "sqlite:///x.db?synchronous=OFF",
        "sqlite:///x.db?mode=ro",
        "memory://x",
        "memory:x",
        "memory:?a=1",
        "mongodb://x",
        "SQLITE/x",
    ],
)
def test_a_url_that_means_nothing_is_refused_at_once(url):
    with pytest.raises(ValueError):
        Once(url)


# --- what a file can suffer -----------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_database_is_refused_and_left_as_it_is(once, path):
    path.write_bytes(b"not a database, but somebody's precious notes\n" * 50)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not an SQLite database"):
        once.run("k", fail_if_run)
    assert path.read_bytes() == before


def test_a_missing_folder_is_refused_and_not_made(tmp_path):
    with pytest.raises(StoreError, match=r"does its folder exist"):
        Once(f"sqlite:///{tmp_path}/no/ledger.db").run("k", fail_if_run)
    assert list(tmp_path.iterdir()) == []


def test_a_schema_from_the_future_is_refused_and_left_as_it_is(once, path):
    once.run("k", one)
    once.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE onceward_meta SET value = '2' WHERE name = 'version'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="newer onceward"):
        Once(f"sqlite:///{path}").run("other", fail_if_run)
    assert rows(path) == [("test_sqlite.one:k", "COMPLETED")]


@pytest.mark.parametrize("value", ["", "one", "1.5", "-1"])
def test_a_schema_version_that_makes_no_sense_is_a_clear_error(once, path, value):
    once.run("k", one)
    once.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE onceward_meta SET value = ? WHERE name = 'version'", (value,))
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        Once(f"sqlite:///{path}").run("other", fail_if_run)


def test_a_table_of_that_name_that_is_not_ours_is_a_clear_error(once, path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE onceward (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        once.run("k", fail_if_run)


def test_a_damaged_file_is_a_clear_error(once, path):
    for number in range(200):
        once.run(number, str, "x" * 100)
    once.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged|refused"):
        Once(f"sqlite:///{path}").run(7, fail_if_run)


@pytest.fixture
def mounted(tmp_path):
    """A small file system of its own, that can be filled up and made read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("a file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder, mode):
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def test_a_read_only_file_is_a_clear_error_and_nothing_runs(mounted):
    once = Once(f"sqlite:///{mounted}/ledger.db")
    once.run("k", one)
    once.close()
    remount(mounted, "ro")
    with pytest.raises(StoreError, match=r"read-only|cannot be opened"):
        once.run("other", fail_if_run)
    remount(mounted, "rw")
    assert once.run("k", one) == 1
    once.close()


def test_a_file_system_that_turns_read_only_gives_the_caller_its_result(mounted):
    once = Once(f"sqlite:///{mounted}/ledger.db", lease=1)

    def handle():
        once.close()
        remount(mounted, "ro")
        return "the effect"

    with pytest.raises(ResultNotRecorded) as raised:
        once.run("k", handle)
    assert raised.value.result == "the effect"
    remount(mounted, "rw")


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
    assert once.run("after", one) == 1
    once.close()


def test_a_full_disk_at_the_completion_is_waited_out_while_claim_lasts(mounted):
    once = Once(f"sqlite:///{mounted}/ledger.db", lease=20)
    once.run("warm up", one)

    def handle():
        fill(mounted)
        threading.Timer(0.4, os.unlink, [mounted / "fill"]).start()
        return "y" * 100_000

    assert once.run("k", handle) == "y" * 100_000
    assert once.run("k", handle) == "y" * 100_000
    once.close()


# --- locks ------------------------------------------------------------------------------------------------------------------------

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


@pytest.fixture
def holder(path):
    """Another process that holds the ledger's write lock until it is told to let go."""
    setup = Once(f"sqlite:///{path}")
    setup.run("set up", one)
    setup.close()
    process = python(HOLD, path)
    assert process.stdout.readline() == "held\n"
    yield lambda: process.communicate("\n", timeout=60) if process.poll() is None else None
    process.communicate("\n" if process.poll() is None else None, timeout=60)


def test_a_file_locked_by_another_process_is_a_clear_error_after_timeout(path, holder):
    once = Once(f"sqlite:///{path}?timeout=0.05")
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"timeout=") as locked:
        once.run("k", fail_if_run)
    assert time.monotonic() - start < 25
    assert locked.value.transient
    assert once.run("set up", one) == 1, "a duplicate needs no lock"
    once.close()


def test_a_lock_held_during_the_completion_is_waited_out(once, path):
    process = None

    def handle():
        nonlocal process
        once.store._file._timeout = 0.05
        once.close()
        process = python(HOLD, path)
        assert process.stdout.readline() == "held\n"
        threading.Timer(0.5, lambda: process.communicate("\n", timeout=60)).start()
        return "the effect"

    assert once.run("k", handle) == "the effect"
    assert ("test_sqlite.test_a_lock_held_during_the_completion_is_waited_out.<locals>.handle:k", "COMPLETED") in rows(
        path
    )
    process.wait(60)


def test_a_lock_held_from_a_coroutine_does_not_block_its_loop(path, holder):
    once = Once(f"sqlite:///{path}?timeout=10")

    async def handle():
        return 1

    async def main():
        task = asyncio.create_task(once.run_async("k", handle))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
        assert not task.done()
        holder()
        return await task

    assert asyncio.run(main()) == 1
    once.close()


# --- sharing ------------------------------------------------------------------------------------------------------------------------


def test_many_threads_share_their_commits(once):
    once.run("set up", one)
    before = once.store._commits
    barrier = threading.Barrier(64)

    def work(number):
        barrier.wait()
        once.run(number, one)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


def test_many_coroutines_share_their_commits(once):
    async def handle():
        await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(once.run_async(number, handle) for number in range(200)))

    asyncio.run(main())
    assert len(list(once.ledger.records())) == 200
    assert once.store._commits < 200


def test_a_once_used_before_a_fork_works_in_the_children_and_the_parent(once, path):
    once.run("before", one)
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            code = 1
            try:
                code = (
                    0
                    if once.run("before", one) == 1
                    and once.run(number, one) == 1
                    and once.using(on_busy=10).run("all", os.getpid)
                    else 2
                )
            finally:
                os._exit(code)
        children.append(child)
    assert once.run("parent", one) == 1
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert [key for key, status in rows(path) if status != "COMPLETED"] == []
    assert len(rows(path)) == 7
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_fork_while_other_threads_write_leaves_no_lock_behind(once, path):
    stop = threading.Event()

    def write(start):
        number = start
        while not stop.is_set():
            once.run(number, one)
            number += 2

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    codes = []
    try:
        for number in range(5):
            child = os.fork()
            if not child:
                code = 1
                try:
                    code = 0 if once.run(f"child {number}", one) == 1 else 2
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 5


def test_a_coroutine_writes_after_a_fork_too(once):
    async def handle():
        return 1

    asyncio.run(once.run_async("before", handle))
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if asyncio.run(once.run_async("after", handle)) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- time ---------------------------------------------------------------------------------------------------------------------------


def test_expired_rows_are_purged_by_the_writes_themselves(once, path):
    for number in range(150):
        once.acquire(number, lease=0.5, retention=0.5).complete()
    time.sleep(0.6)
    for number in range(150):
        once.run(number, one)
    assert [key for (key,) in rows(path, "SELECT key FROM onceward") if key.startswith("claim:")] == []


def test_a_step_of_the_wall_clock_does_not_matter(once, monkeypatch):
    claim = once.acquire("k", lease=60)
    real = time.time
    for step in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        other = Once(once.store.url)
        with pytest.raises(Exception, match="holds this key"):
            other.acquire("k")
        other.close()
    claim.complete()


def set_meta(path, name, value):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE onceward_meta SET value = ? WHERE name = ?", (value, name))
    connection.commit()
    connection.close()


def test_after_a_reboot_the_clock_is_never_before_the_newest_record(once, path):
    once.run("k", one)
    once.close()
    connection = sqlite3.connect(path)
    future = time.time() + 1e6  # the wall clock was ahead before the reboot
    connection.execute("UPDATE onceward SET created_at = ?", (future,))
    connection.commit()
    connection.close()
    set_meta(path, "boot", "another boot")
    again = Once(f"sqlite:///{path}")
    again.run("other", one)
    created = dict(rows(path, "SELECT key, created_at FROM onceward"))
    assert future <= created["test_sqlite.one:other"] < future + 60
    again.close()


def test_all_workers_of_one_boot_read_the_same_time(once, path):
    once.run("k", one)
    other = python(
        "import sys; from onceward import Once; once = Once('sqlite:///' + sys.argv[1]); print(once.ledger.show('test_sqlite.one:k')[1])",
        path,
    )
    theirs = float(other.communicate(timeout=30)[0])
    assert abs(once.ledger.show("test_sqlite.one:k")[1] - theirs) < 10


def test_the_first_transaction_of_a_process_is_on_the_ledgers_clock(once, path):
    once.run("k", one)
    fresh = Once(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    with fresh.transaction("t", connection):
        pass
    connection.close()
    record, now = once.ledger.show("claim:t")
    assert abs(record.created_at - now) < 60
    fresh.close()


# --- the end of a process -------------------------------------------------------------------------------------------------------------

SHUTDOWN = """
import asyncio, atexit, sys, threading, time
from onceward import Once, current
once = Once("sqlite:///" + sys.argv[1], lease=0.3)
def slow(): time.sleep(0.5); return 1
async def slow_async(): await asyncio.sleep(0.5); return 1
kind = sys.argv[2]
if kind == "idle":
    once.run("a", slow)
    asyncio.run(once.run_async("b", slow_async))
elif kind == "mid-handler":
    threading.Thread(target=lambda: once.run("a", slow), daemon=True).start()
    time.sleep(0.2)
elif kind == "loop closed":
    async def main():
        asyncio.create_task(once.run_async("b", slow_async))
        await asyncio.sleep(0.1)
    asyncio.run(main())
elif kind == "loop closed while writing":
    async def main():
        for n in range(200):
            asyncio.create_task(once.run_async(n, slow_async))
        await asyncio.sleep(0)
    asyncio.run(main())
elif kind == "atexit":
    once.run("a", slow)
    atexit.register(lambda: print(once.run("b", slow)))
elif kind == "never closed":
    import gc
    for n in range(5):
        Once("sqlite:///" + sys.argv[1]).run(n, slow)
    gc.collect()
elif kind == "open claim":
    once.acquire("a"); once.claim("b").__enter__()
"""


@pytest.mark.parametrize(
    "kind", ["idle", "mid-handler", "loop closed", "loop closed while writing", "atexit", "never closed", "open claim"]
)
def test_a_process_ends_quietly_whatever_is_under_way(path, kind):
    process = python(SHUTDOWN, path, kind)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


THREAD_DIES = """
import sys, threading
from onceward import Once
once = Once("sqlite:///" + sys.argv[1])
def dies(): raise SystemExit
threads = [threading.Thread(target=lambda n=n: once.run(n, dies)) for n in range(20)]
for t in threads: t.start()
for t in threads: t.join()
print(once.ledger.stats()["IN_PROGRESS"], once.run("k", int))
"""


def test_threads_that_die_in_their_handlers_leave_no_lock_behind(path):
    process = python(THREAD_DIES, path)
    assert process.communicate(timeout=60) == ("20 0\n", "")


INTERRUPTS = """
import faulthandler, random, signal, sys, time
from onceward import Busy, Once
faulthandler.dump_traceback_later(50, exit=True)  # a lock that was left behind
once = Once("sqlite:///" + sys.argv[1] + "?synchronous=NORMAL", lease=30)  # longer than any stall of the disk
ended, errors = {}, set()
def handle(n):
    ended[n] = ended.get(n, 0) + 1
def interrupt(*_):
    raise KeyboardInterrupt
once.run(-1, handle, -1)
signal.signal(signal.SIGALRM, interrupt)
dice = random.Random(7)
end = time.monotonic() + 40
n = 0
while n < 1000 and time.monotonic() < end:
    n += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 20e-6 + dice.random() * 3e-4)
        once.run(n, handle, n)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        try:
            once.run(n, handle, n)
        except Exception as error:
            errors.add(type(error).__name__)
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        errors.add(type(error).__name__)
print(max(ended.values()), sorted(errors - {"Busy"}), n > 200)
"""


def test_interrupts_at_any_moment_leave_no_lock_and_run_nothing_twice(path):
    process = python(INTERRUPTS, path)
    out, errors = process.communicate(timeout=60)
    assert (out, errors) == ("1 [] True\n", "")


def test_a_worker_paused_past_its_lease_is_told_and_overwrites_nothing(once):
    zombie = once.acquire("k", lease=0.5)
    time.sleep(0.6)
    once.acquire("k").complete("theirs")
    for ending in (zombie.complete, zombie.release, zombie.park, zombie.extend):
        with pytest.raises(LeaseLost):
            ending()
    with pytest.raises(Completed) as done:
        once.acquire("k")
    assert done.value.result == "theirs"


def test_opening_waits_for_a_writer_of_a_file_that_is_not_in_wal_mode_yet(path):
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("CREATE TABLE mine (x)")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO mine VALUES (1)")
    threading.Timer(0.3, writer.execute, ["COMMIT"]).start()
    assert Once(f"sqlite:///{path}").run("k", one) == 1
    writer.close()


class Limit(BaseException):
    """A limit of time that a signal handler raises."""


def test_an_interrupt_of_the_loop_leaves_nobody_waiting(tmp_path):
    struck = []

    def strike(frame, event, arg):
        if event == "call" and frame.f_code.co_name == "_wake":
            struck.append(1)
            raise Limit  # which the loop logs

    async def main():
        async with asyncio.timeout(20):
            await once.run_async("warm", effect)
            sys.setprofile(strike)
            return await once.run_async("k", effect)

    async def effect():
        return 1

    once = Once(f"sqlite:///{tmp_path}/l.db", name="n")
    assert asyncio.run(main()) == 1
    assert struck == [1]
