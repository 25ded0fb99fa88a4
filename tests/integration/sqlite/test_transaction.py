"""An effect in the ledger's own file commits together with its record: both, or neither."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from onceward import (
    Busy,
    Claim,
    Completed,
    LeaseLost,
    Once,
    OncewardError,
    Parked,
    ResultUnavailable,
    ResultWarning,
    StoreError,
    current,
)
from onceward.stores.memory import MemoryStore
from servers.needs import missing
from stores.sqlite_commits import Commits, commits_and_raises, raises, rolls_back_and_raises


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "ledger.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE effects (value)")
    connection.commit()
    connection.close()
    return file


@pytest.fixture
def once(path):
    made = Once(f"sqlite:///{path}")
    yield made
    made.close()


LEVELS = ["", "IMMEDIATE", None]


@pytest.fixture(params=LEVELS, ids=lambda level: f"isolation_level={level!r}")
def connection(request, path):
    made = sqlite3.connect(path, isolation_level=request.param)
    yield made
    made.close()


def effects(path):
    connection = sqlite3.connect(path)
    try:
        return [value for (value,) in connection.execute("SELECT value FROM effects ORDER BY rowid")]
    finally:
        connection.close()


def status(once):
    return [(record.status, record.attempts) for record, _ in once.ledger.records()]


def act(tx, value="effect"):
    tx.connection.execute("INSERT INTO effects VALUES (?)", (value,))


class Failure(Exception):
    pass


def test_effect_and_record_commit_together_and_a_duplicate_gets_result(once, path, connection):
    with once.transaction("k", connection) as tx:
        act(tx)
        assert effects(path) == []
        assert status(once) == []
        tx.result = {"done": (1, 2)}
    assert effects(path) == ["effect"]
    assert status(once) == [("COMPLETED", 1)]
    assert not connection.in_transaction
    with pytest.raises(Completed) as done, once.transaction("k", connection) as tx:
        act(tx, "twice")
    assert done.value.result == {"done": (1, 2)}
    assert effects(path) == ["effect"]
    assert not connection.in_transaction


def test_a_body_that_raises_leaves_no_effect_and_counts_the_attempt(once, path, connection):
    for attempt in (1, 2):
        with pytest.raises(Failure), once.transaction("k", connection) as tx:
            assert tx.claim.attempt == attempt
            act(tx)
            raise Failure("no")
        assert effects(path) == []
        assert status(once) == [("RELEASED", attempt)]
        assert not connection.in_transaction
    assert next(once.ledger.records())[0].error == "Failure: no"
    with once.transaction("k", connection) as tx:
        act(tx)
    assert status(once) == [("COMPLETED", 3)]


def test_a_key_that_is_parked_by_the_claim_itself_stays_parked(once, path, connection):
    once.acquire("k", lease=0.04)
    time.sleep(0.1)
    with pytest.raises(Parked), once.transaction("k", connection, on_lapse="park"):
        pass
    assert status(once) == [("PARKED", 1)]


def test_on_error_park_and_final_exceptions_work_as_in_a_guard(once, path, connection):
    with pytest.raises(Failure), once.transaction("parks", connection, on_error="park"):
        raise Failure
    with pytest.raises(Failure), once.transaction("final", connection, final=(Failure,)) as tx:
        act(tx)
        raise Failure("the outcome")
    assert {record.key: record.status for record, _ in once.ledger.records()} == {
        "claim:parks": "PARKED",
        "claim:final": "COMPLETED",
    }
    assert effects(path) == []
    with pytest.raises(Failure, match="the outcome"), once.transaction("final", connection, final=(Failure,)):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_body_leaves_no_effect_and_no_claim(once, path, connection, error):
    with pytest.raises(error), once.transaction("k", connection) as tx:
        act(tx)
        raise error
    assert effects(path) == []
    assert status(once) == []
    assert not connection.in_transaction


def test_a_busy_key_is_refused_at_once_even_when_the_policy_waits(once, connection):
    once.acquire("k")
    start = time.monotonic()
    with pytest.raises(Busy), once.transaction("k", connection, on_busy=30):
        pass
    assert time.monotonic() - start < 25, "it waited"
    assert not connection.in_transaction


def test_a_concurrent_duplicate_waits_for_transaction_and_gets_its_result(once, path):
    entered = threading.Event()
    answers = []

    def first():
        connection = sqlite3.connect(path)
        with once.transaction("k", connection) as tx:
            entered.set()
            time.sleep(0.2)
            act(tx)
            tx.result = "first"
        connection.close()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(60)
    connection = sqlite3.connect(path)
    with pytest.raises(Completed) as done, once.transaction("k", connection) as tx:
        act(tx)
    thread.join()
    connection.close()
    assert done.value.result == "first"
    assert effects(path) == ["effect"]
    assert answers == []


def test_the_claim_is_current_in_the_body_and_is_not_lost(once, connection):
    with once.transaction("k", connection) as tx:
        assert current() is tx.claim
        assert tx.claim.key("x")
        assert not tx.claim.lost
    with pytest.raises(OncewardError):
        current()


# --- connections that will not do -------------------------------------------------------------------------------------------


def test_a_connection_to_another_file_is_refused(once, tmp_path):
    for name in (str(tmp_path / "other.db"), ":memory:", ""):
        connection = sqlite3.connect(name)
        connection.execute("CREATE TABLE effects (value)")
        connection.commit()
        with pytest.raises(ValueError, match="same file"), once.transaction("k", connection) as tx:
            act(tx)
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (0,)
        connection.close()


def test_a_connection_by_another_path_to_the_same_file_is_accepted(once, path, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    connection = sqlite3.connect(tmp_path / "link" / path.name)
    with once.transaction("k", connection) as tx:
        act(tx)
    connection.close()
    assert effects(path) == ["effect"]


def test_a_connection_in_a_transaction_is_refused_and_left_in_it(once, path, connection):
    connection.execute("BEGIN")
    connection.execute("INSERT INTO effects VALUES ('mine')")
    with pytest.raises(ValueError, match="in a transaction already"), once.transaction("k", connection):
        pass
    connection.execute("COMMIT")
    assert effects(path) == ["mine"]


def test_a_blocking_connection_is_refused_under_async_with(once, connection):
    async def enter():
        async with once.transaction("k", connection):
            pytest.fail("it ran")

    with pytest.raises(TypeError, match="this connection blocks"):
        asyncio.run(enter())
    assert status(once) == []
    assert not connection.in_transaction


def test_a_ledger_that_is_not_in_sqlite_is_refused(connection):
    with pytest.raises(
        TypeError, match=r"memory: cannot commit a transaction .* can: mariadb, mysql, postgresql, sqlite$"
    ):
        Once(MemoryStore()).transaction("k", connection)


if sys.version_info >= (3, 12):  # where the attribute is new

    def test_a_connection_with_autocommit_is_welcome(once, path):
        connection = sqlite3.connect(path, autocommit=True)
        with once.transaction("k", connection) as tx:
            act(tx)
        assert effects(path) == ["effect"]
        connection.close()

    def test_a_connection_without_autocommit_is_told_why_not(once, path):
        connection = sqlite3.connect(path, autocommit=False)
        with pytest.raises(ValueError, match="autocommit=False"), once.transaction("k", connection):
            pass
        connection.close()


def test_the_first_use_of_a_ledger_may_be_a_transaction(path):
    once = Once(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    with once.transaction("k", connection) as tx:
        act(tx)
    record, now = once.ledger.show("claim:k")
    assert abs(now - record.created_at) < 60
    connection.close()
    once.close()


# --- bodies that end the transaction themselves ---------------------------------------------------------------------------------


def commits(tx):
    act(tx)
    tx.connection.commit() if tx.connection.isolation_level is not None else tx.connection.execute("COMMIT")


def commits_and_goes_on(tx):
    commits(tx)
    tx.connection.execute("BEGIN")
    act(tx, "more")


def rolls_back(tx):
    act(tx)
    tx.connection.execute("ROLLBACK")


def rolls_back_and_goes_on(tx):
    rolls_back(tx)
    tx.connection.execute("BEGIN")
    act(tx, "more")


def runs_a_script(tx):
    act(tx)
    tx.connection.executescript("SELECT 1")


def uses_the_connections_own_context(tx):
    with tx.connection:
        act(tx)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "body",
    [commits, commits_and_goes_on, rolls_back, rolls_back_and_goes_on, runs_a_script, uses_the_connections_own_context],
)
def test_a_body_that_ends_the_transaction_itself_is_parked_and_told(once, path, body, raises):
    connection = sqlite3.connect(path)
    with (
        pytest.raises(OncewardError, match="committed or rolled back") as told,
        once.transaction("k", connection) as tx,
    ):
        body(tx)
        if raises:
            raise Failure
    assert isinstance(told.value.__cause__, Failure if raises else type(None))
    assert [state for state, _ in status(once)] == ["PARKED"]
    assert "more" not in effects(path)
    assert not connection.in_transaction
    connection.close()


@pytest.mark.parametrize("body", [commits, commits_and_goes_on, rolls_back])
def test_a_held_claim_whose_transaction_was_ended_by_body_is_parked_too(once, path, body):
    connection = sqlite3.connect(path)

    def handle():
        with current().transaction(connection) as tx:
            body(tx)

    with pytest.raises(OncewardError, match="committed or rolled back"):
        once.run("k", handle)
    assert [state for state, _ in status(once)] == ["PARKED"]
    connection.close()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("is_committed", "error", "state"),
    [(False, None, "RELEASED"), (False, Failure, "RELEASED"), (True, None, "PARKED"), (True, Failure, "PARKED")],
)
def test_a_body_that_closes_the_connection_makes_its_effect_at_most_once(once, path, held, is_committed, error, state):
    def handle():
        connection = sqlite3.connect(path)
        with current().transaction(connection) if held else once.transaction("k", connection) as tx:
            commits(tx) if is_committed else act(tx)
            connection.close()
            if error is not None:
                raise error

    with pytest.raises(Failure if error and not is_committed else OncewardError):
        once.run("k", handle) if held else handle()
    assert status(once) == [(state, 1)]
    assert len(effects(path)) == is_committed


# --- claims in the hand -----------------------------------------------------------------------------------------------------------


def test_a_handler_commits_its_effect_together_with_its_completion(once, path, connection):
    def handle():
        claim = current()
        with claim.transaction(connection) as tx:
            act(tx)
            tx.result = "told"
        return "returned"

    assert once.run("k", handle) == "returned"
    assert once.run("k", handle) == "told"
    assert effects(path) == ["effect"]


def test_a_handler_whose_transaction_raises_is_tried_again(once, path, connection):
    outcomes = [Failure(), None]

    def handle():
        with current().transaction(connection) as tx:
            act(tx)
            if error := outcomes.pop(0):
                raise error
        return "ok"

    with pytest.raises(Failure):
        once.run("k", handle)
    assert (effects(path), status(once)) == ([], [("RELEASED", 1)])
    assert once.run("k", handle) == "ok"
    assert (effects(path), status(once)) == (["effect"], [("COMPLETED", 2)])


def test_the_business_writes_of_a_zombie_are_refused_with_its_completion(once, path, connection):
    zombie = once.acquire("k", lease=0.5)
    time.sleep(0.6)
    once.acquire("k", lease=60).complete("theirs")
    with pytest.raises(LeaseLost), zombie.transaction(connection) as tx:
        act(tx)
    assert effects(path) == []
    assert not connection.in_transaction


def test_nobody_takes_a_key_over_while_its_transaction_is_open(once, path):
    claim = once.acquire("k", lease=1.0)
    connection = sqlite3.connect(path)
    other = Once(f"sqlite:///{path}?timeout=10")
    taken = []

    def take_over():
        with pytest.raises(Completed):
            other.acquire("k")
        taken.append(True)

    with claim.transaction(connection) as tx:
        time.sleep(1.2)
        assert not claim.lost
        thread = threading.Thread(target=take_over)
        thread.start()
        time.sleep(0.1)
        act(tx)
    thread.join()
    connection.close()
    other.close()
    assert taken
    assert effects(path) == ["effect"]


@pytest.mark.parametrize("what", ["complete", "extend", "run another", "park"])
def test_what_would_wait_for_its_own_transaction_is_told_at_once(path, what):
    once = Once(f"sqlite:///{path}?timeout=10", lease=30)
    once.run("set up", int)
    connection = sqlite3.connect(path)
    start = time.monotonic()
    with pytest.raises(OncewardError), once.transaction("k", connection) as tx:
        if what == "run another":
            once.run("other", int)
        else:
            getattr(tx.claim, what)()
    assert time.monotonic() - start < 25
    connection.close()
    once.close()


# --- results -------------------------------------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_completes_all_the_same(once, path, connection):
    def run():
        with once.transaction("k", connection) as tx:
            act(tx)
            tx.result = object()

    with pytest.warns(ResultWarning):
        run()
    assert effects(path) == ["effect"]
    with pytest.raises(ResultUnavailable), once.transaction("k", connection):
        pass


def test_a_locked_file_is_a_clear_error_and_nothing_runs(path, connection):
    Once(f"sqlite:///{path}").run("set up", int)
    connection.execute("PRAGMA busy_timeout = 50")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        pytest.raises(StoreError, match="write lock"),
        Once(f"sqlite:///{path}?timeout=0.05").transaction("k", connection),
    ):
        pytest.fail("it ran")
    holder.close()
    assert not connection.in_transaction


# --- crashes -------------------------------------------------------------------------------------------------------------------------

CRASH = """
import os, sqlite3, sys
from onceward import Once, current
path, where = sys.argv[1:]
once = Once("sqlite:///" + path, lease=0.2)
connection = sqlite3.connect(path)
def body(tx):
    if where == "before": os._exit(9)
    connection.execute("INSERT INTO effects VALUES ('effect')")
    if where == "middle": os._exit(9)
if where == "commit":
    connection.set_trace_callback(lambda sql: os._exit(9) if sql == "COMMIT" else None)
if where == "after":
    with once.transaction("k", connection) as tx: body(tx)
    os._exit(9)
with once.transaction("k", connection) as tx: body(tx)
"""


@pytest.mark.parametrize("where", ["before", "middle", "commit", "after"])
def test_a_crash_leaves_both_or_neither(once, path, where):
    import onceward

    once.run("set up", int)
    src = os.path.dirname(os.path.dirname(onceward.__file__))
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(path), where], env={**os.environ, "PYTHONPATH": src}, timeout=60
    )
    assert done.returncode == 9
    records = {record.key: record.status for record, _ in once.ledger.records("claim:")}
    if where == "after":
        assert (effects(path), records) == (["effect"], {"claim:k": "COMPLETED"})
    else:
        assert (effects(path), records) == ([], {})
        connection = sqlite3.connect(path)
        with once.transaction("k", connection) as tx:
            assert tx.claim.attempt == 1
            act(tx)
        connection.close()
        assert effects(path) == ["effect"]


# --- commits that fail ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def strict(path):
    """A connection whose COMMIT fails: a foreign key is checked only then."""
    made = sqlite3.connect(path, isolation_level=None)
    made.execute("PRAGMA foreign_keys = ON")
    made.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    made.execute("CREATE TABLE children (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    yield made
    made.close()


def orphan(connection):
    connection.execute("INSERT INTO children VALUES (7)")


def test_a_commit_that_fails_leaves_the_claim_held_and_renewed(once, path, strict):
    with once.claim("k", lease=0.6) as claim:
        with pytest.raises(StoreError, match="FOREIGN KEY"), claim.transaction(strict) as tx:
            orphan(tx.connection)
        assert not strict.in_transaction
        assert (claim.settled, claim.record.status, claim.lost) == (None, "IN_PROGRESS", False)
        assert status(once) == [("IN_PROGRESS", 1)]
        time.sleep(1.0)  # longer than the lease: it is renewed
        rival = Once(f"sqlite:///{path}")
        with pytest.raises(Busy):
            rival.acquire("k")
        rival.close()
        claim.extend()
        assert not claim.lost
        with claim.transaction(strict) as tx:
            act(tx)
    assert (effects(path), status(once)) == (["effect"], [("COMPLETED", 1)])


def test_a_commit_that_fails_in_a_handler_gives_its_key_back(once, path, strict):
    bodies = [orphan, lambda connection: connection.execute("INSERT INTO effects VALUES ('effect')")]

    def handle():
        with current().transaction(strict) as tx:
            bodies.pop(0)(tx.connection)

    with pytest.raises(StoreError, match="FOREIGN KEY"):
        once.run("k", handle)
    assert status(once) == [("RELEASED", 1)]
    once.run("k", handle)
    assert (effects(path), status(once)) == (["effect"], [("COMPLETED", 2)])


def test_a_commit_that_fails_counts_the_attempt_of_a_key_claimed_with_it(once, path, strict):
    for attempt in (1, 2):
        with pytest.raises(StoreError, match="FOREIGN KEY"), once.transaction("k", strict, max_attempts=2) as tx:
            orphan(tx.connection)
        assert tx.claim.lost
        assert status(once) == [("PARKED" if attempt == 2 else "RELEASED", attempt)]


IO_ERROR = sqlite3.OperationalError("disk I/O error")


def test_a_commit_that_was_made_though_its_reply_is_an_error_counts(once, path):
    connection = Commits(sqlite3.connect(path, isolation_level=None), commits_and_raises(IO_ERROR))
    claim = once.acquire("k")
    with claim.transaction(connection) as tx:
        act(tx)
    assert claim.settled == "COMPLETED"
    assert (effects(path), status(once)) == (["effect"], [("COMPLETED", 1)])
    connection.close()


def test_an_interrupt_after_the_commit_finds_the_claim_completed(once, path):
    connection = Commits(sqlite3.connect(path, isolation_level=None), commits_and_raises(KeyboardInterrupt()))
    claim = once.acquire("k")
    with pytest.raises(KeyboardInterrupt), claim.transaction(connection) as tx:
        act(tx)
    assert claim.settled == "COMPLETED"
    assert (effects(path), status(once)) == (["effect"], [("COMPLETED", 1)])
    connection.close()


@pytest.mark.parametrize("at_commit", [rolls_back_and_raises, raises])
@pytest.mark.parametrize("error", [IO_ERROR, KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_commit_that_was_not_made_leaves_the_claim_as_it_was(once, path, at_commit, error):
    connection = Commits(sqlite3.connect(path, isolation_level=None), at_commit(error))
    claim = once.acquire("k")
    with pytest.raises((StoreError, KeyboardInterrupt)), claim.transaction(connection) as tx:
        act(tx)
    assert (claim.settled, effects(path), status(once)) == (None, [], [("IN_PROGRESS", 1)])
    claim.complete()
    assert status(once) == [("COMPLETED", 1)]
    connection.close()


def fails_when_full(file, kilobytes):
    once = Once(f"sqlite:///{file}", lease=5)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("CREATE TABLE effects (value)")
    claim = once.acquire("k")
    failed = False
    try:
        with claim.transaction(connection) as tx:
            for _ in range(kilobytes):
                act(tx, "x" * 2048)
    except (sqlite3.OperationalError, OncewardError):
        failed = True
    (made,) = connection.execute("SELECT count(*) FROM effects").fetchone()
    assert (made, claim.settled) == ((0, None) if failed else (kilobytes, "COMPLETED"))
    assert once.ledger.show(claim.record.key)[0].status == ("IN_PROGRESS" if failed else "COMPLETED")
    connection.close()
    once.close()
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    return failed


def test_a_disk_full_at_the_commit_leaves_neither_effect_nor_record(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True).returncode:
        missing("a file system can only be mounted by root")
    try:
        failed = [fails_when_full(folder / f"{kilobytes}.db", kilobytes) for kilobytes in range(180, 260, 8)]
        assert 0 < sum(failed) < len(failed)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# --- connections with ways of their own ---------------------------------------------------------------------------------------------


def as_dict(cursor, row):
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize(
    "settings",
    [
        {"row_factory": as_dict},
        {"row_factory": sqlite3.Row},
        {"row_factory": lambda _cursor, row: row[0]},
        {"text_factory": bytes},
        {"text_factory": lambda text: text.decode("latin-1").upper()},
    ],
)
def test_a_connection_may_have_factories_of_its_own(once, path, settings):
    connection = sqlite3.connect(path)
    for name, value in settings.items():
        setattr(connection, name, value)
    for _ in range(2):
        with contextlib.suppress(Completed), once.transaction("k", connection) as tx:
            act(tx)
            tx.result = "told"
    claim = once.acquire("held")
    with claim.transaction(connection) as tx:
        act(tx)
    with pytest.raises(Completed) as done, once.transaction("k", connection):
        pass
    assert done.value.result == "told"
    for name, value in settings.items():
        assert getattr(connection, name) is value
    assert effects(path) == ["effect", "effect"]
    connection.close()


def test_a_connection_may_have_converters_of_its_own(once, path, monkeypatch):
    monkeypatch.setattr(sqlite3, "converters", {})
    before = dict(sqlite3.converters)
    for declared in ("TEXT", "REAL", "INTEGER"):
        sqlite3.register_converter(declared, lambda value: ("converted", value))
    try:
        connection = sqlite3.connect(path, detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
        for _ in range(2):
            with contextlib.suppress(Completed), once.transaction("k", connection) as tx:
                act(tx)
        with once.acquire("held").transaction(connection) as tx:
            act(tx)
        assert effects(path) == ["effect", "effect"]
        connection.close()
    finally:
        for declared in ("TEXT", "REAL", "INTEGER"):
            sqlite3.converters.pop(declared, None)
        sqlite3.converters.update(before)


def test_a_body_in_a_thread_outlives_its_cancelled_handler_whole(path):
    """Rolled back by the handler's guard, its INSERT would commit alone."""
    once = Once(f"sqlite:///{path}", name="n", lease=30)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE IF NOT EXISTS cut_effects (value)")
    begun, cancelled, over = threading.Event(), threading.Event(), threading.Event()

    def body(claim):
        try:
            with claim.transaction(connection) as tx:
                begun.set()
                cancelled.wait(60)
                connection.execute("INSERT INTO cut_effects VALUES ('made')")
                tx.result = "made"
        finally:
            over.set()

    async def handler(claim: Claim) -> str:
        await asyncio.to_thread(body, claim)
        return "made"

    async def main():
        task = asyncio.create_task(once.run_async("k", handler))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        await asyncio.to_thread(over.wait, 60)

    asyncio.run(main())
    made = connection.execute("SELECT count(*) FROM cut_effects").fetchone()[0]
    (status,) = [record.status for record, _ in once.ledger.records()]
    assert (made, status) in {(1, "COMPLETED"), (0, "IN_PROGRESS")}
    connection.close()
    once.close()
