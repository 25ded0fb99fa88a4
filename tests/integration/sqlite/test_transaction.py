"""An effect in the ledger's own file commits together with its record: both, or neither."""

import contextlib
import contextvars
import sqlite3
import sys
import threading
import time
from unittest.mock import Mock

import pytest

from onceward import Busy, Completed, LeaseLost, Once, OncewardError, ResultNotRecorded, StoreError, current
from stores.sqlite_commits import Commits, commits_and_raises, raises, rolls_back_and_raises
from stores.transaction_cases import (  # noqa: F401 - they run here
    Failure,
    test_a_body_that_ends_the_transaction_itself_is_parked_and_told,
    test_a_body_that_raises_leaves_no_effect_and_counts_the_attempt,
    test_a_handler_whose_body_commits_by_itself_and_then_fails_is_not_tried_again,
    test_a_handler_whose_transaction_raises_is_tried_again_and_commits_its_effect_with_its_completion,
    test_effect_and_record_commit_together_and_a_duplicate_gets_result,
    test_savepoints_of_the_body_are_its_own_business,
    test_the_other_kind_of_with_is_refused_before_anything_runs,
)


def status(once):
    return [(record.status, record.attempts) for record, _ in once.ledger.records()]


def act(tx, value="effect"):
    tx.connection.execute("INSERT INTO effects VALUES (?)", (value,))


def test_on_error_park_and_final_exceptions_work_as_in_a_guard(once, path, effects, connection):
    with pytest.raises(Failure), once.transaction("parks", connection, on_error="park"):
        raise Failure
    with pytest.raises(Failure), once.transaction("final", connection, final=(Failure,)) as tx:
        act(tx)
        raise Failure("the outcome")
    assert {record.key: record.status for record, _ in once.ledger.records()} == {
        "claim:parks": "PARKED",
        "claim:final": "COMPLETED",
    }
    assert effects() == []
    with pytest.raises(Failure, match="the outcome"), once.transaction("final", connection, final=(Failure,)):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_body_leaves_no_effect_and_no_claim(once, path, effects, connection, error):
    with pytest.raises(error), once.transaction("k", connection) as tx:
        act(tx)
        raise error
    assert effects() == []
    assert status(once) == []
    assert not connection.in_transaction


def test_a_busy_key_is_refused_at_once_even_when_the_policy_waits(once, connection):
    once.acquire("k", lease=600)
    with pytest.raises(Busy), once.transaction("k", connection, on_busy=600):
        pass
    assert not connection.in_transaction


def test_a_concurrent_duplicate_waits_for_transaction_and_gets_its_result(once, path, effects):
    entered = threading.Event()

    def first():
        with contextlib.closing(sqlite3.connect(path)) as connection, once.transaction("k", connection) as tx:
            entered.set()
            time.sleep(0.2)
            act(tx)
            tx.result = "first"

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(60)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        with pytest.raises(Completed) as done, once.transaction("k", connection) as tx:
            act(tx)
    thread.join()
    assert (done.value.result, effects()) == ("first", ["effect"])


def test_a_connection_to_another_file_is_refused_and_one_by_another_path_is_not(once, path, effects, tmp_path):
    for name in (str(tmp_path / "other.db"), ":memory:", ""):
        with contextlib.closing(sqlite3.connect(name)) as connection:
            with pytest.raises(ValueError, match="same file"), once.transaction("k", connection):
                pytest.fail("it ran")
    (tmp_path / "link").symlink_to(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "link" / path.name)) as connection:
        with once.transaction("k", connection) as tx:
            act(tx)
    assert effects() == ["effect"]


def test_a_connection_in_a_transaction_is_refused_and_left_in_it(once, path, effects, connection):
    connection.execute("BEGIN")
    connection.execute("INSERT INTO effects VALUES ('mine')")
    with pytest.raises(ValueError, match="in a transaction already"), once.transaction("k", connection):
        pass
    connection.execute("COMMIT")
    assert effects() == ["mine"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the attribute is new in 3.12")
def test_a_connection_with_autocommit_is_welcome_and_one_without_is_told_why_not(once, path, effects):
    with contextlib.closing(sqlite3.connect(path, autocommit=True)) as connection:
        with once.transaction("k", connection) as tx:
            act(tx)
    assert effects() == ["effect"]
    with contextlib.closing(sqlite3.connect(path, autocommit=False)) as connection:
        with pytest.raises(ValueError, match="autocommit=False"), once.transaction("k", connection):
            pass


@pytest.mark.parametrize("body", ["script", "context"])
def test_a_script_or_the_connections_own_context_ends_the_transaction_and_parks_the_key(once, connection, body):
    with pytest.raises(OncewardError, match="committed or rolled back") as told:
        with once.transaction("k", connection) as tx:
            with connection if body == "context" else contextlib.nullcontext():
                act(tx)
            connection.executescript("SELECT 1")
            raise Failure
    assert isinstance(told.value.__cause__, Failure)
    assert [state for state, _ in status(once)] == ["PARKED"]
    assert not connection.in_transaction


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("is_committed", "error", "state"),
    [(False, None, "RELEASED"), (False, Failure, "RELEASED"), (True, None, "PARKED"), (True, Failure, "PARKED")],
)
def test_a_body_that_closes_the_connection_makes_its_effect_at_most_once(
    once, path, effects, held, is_committed, error, state
):
    def handle():
        connection = sqlite3.connect(path)
        with current().transaction(connection) if held else once.transaction("k", connection) as tx:
            act(tx)
            if is_committed:
                connection.commit()
            connection.close()
            if error is not None:
                raise error

    with pytest.raises(Failure if error and not is_committed else OncewardError):
        once.run("k", handle) if held else handle()
    assert status(once) == [(state, 1)]
    assert len(effects()) == is_committed


def test_the_business_writes_of_a_zombie_are_refused_with_its_completion(once, path, effects, connection):
    zombie = once.acquire("k", lease=0.5)
    time.sleep(0.6)
    once.acquire("k", lease=60).complete("theirs")
    with pytest.raises(LeaseLost), zombie.transaction(connection) as tx:
        act(tx)
    assert effects() == []
    assert not connection.in_transaction


@pytest.mark.parametrize("what", ["complete", "extend", "run another", "park"])
def test_what_would_wait_for_its_own_transaction_is_told_at_once(path, what):
    once = Once(f"sqlite:///{path}?timeout=600", lease=600)
    once.run("set up", int)
    connection = sqlite3.connect(path)
    with pytest.raises(OncewardError), once.transaction("k", connection) as tx:
        if what == "run another":
            once.run("other", int)
        else:
            getattr(tx.claim, what)()
    connection.close()
    once.close()


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


def test_a_commit_that_fails_leaves_the_claim_held_and_renewed(once, path, effects, strict):
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
    assert (effects(), status(once)) == (["effect"], [("COMPLETED", 1)])


def test_a_commit_that_fails_counts_the_attempt_of_a_key_claimed_with_it(once, path, strict):
    for attempt in (1, 2):
        with pytest.raises(StoreError, match="FOREIGN KEY"), once.transaction("k", strict, max_attempts=2) as tx:
            orphan(tx.connection)
        assert tx.claim.lost
        assert status(once) == [("PARKED" if attempt == 2 else "RELEASED", attempt)]


IO_ERROR = sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("at_commit", [commits_and_raises, rolls_back_and_raises, raises])
@pytest.mark.parametrize("error", [IO_ERROR, KeyboardInterrupt()], ids=["error", "interrupt"])
def test_trouble_at_the_commit_leaves_the_claim_completed_or_as_it_was(once, path, effects, at_commit, error):
    connection, made = (
        Commits(sqlite3.connect(path, isolation_level=None), at_commit(error)),
        at_commit is commits_and_raises,
    )
    claim = once.acquire("k")
    told = contextlib.nullcontext() if made and error is IO_ERROR else pytest.raises((StoreError, KeyboardInterrupt))
    with told, claim.transaction(connection) as tx:
        act(tx)
    if not made:
        assert (claim.settled, effects(), status(once)) == (None, [], [("IN_PROGRESS", 1)])
        claim.complete()
    assert claim.settled == "COMPLETED"
    assert (effects(), status(once)) == (["effect"] * made, [("COMPLETED", 1)])
    connection.close()


def test_a_transaction_that_fails_after_a_completion_in_vain_does_not_give_the_key_back(once, connection, monkeypatch):
    def handle():
        with monkeypatch.context() as patch, contextlib.suppress(ResultNotRecorded):
            patch.setattr(type(once.store), "swap", Mock(side_effect=StoreError("away")))
            current().complete("done")
        with current().transaction(connection):
            raise Failure

    with pytest.raises(Failure):
        once.run("k", handle)
    assert status(once) == [("IN_PROGRESS", 1)]


def test_what_outlives_the_transaction_of_a_bare_claim_does_not_see_that_claim(once, connection):
    with (claim := once.acquire("k")).transaction(connection):
        outlives = contextvars.copy_context()
        assert outlives.run(current) is claim
    with pytest.raises(OncewardError, match="no claim here"):
        outlives.run(current)


@pytest.mark.parametrize("detects", [0, sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES])
def test_a_connection_may_have_factories_and_converters_of_its_own(once, path, effects, detects):
    for declared in ("TEXT", "REAL", "INTEGER"):  # for connections that detect types
        sqlite3.register_converter(declared, lambda value: ("converted", value))
    connection = sqlite3.connect(path, detect_types=detects)
    connection.row_factory, connection.text_factory = (lambda _cursor, row: row[0]), bytes
    with once.transaction("k", connection) as tx:
        act(tx)
        tx.result = "told"
    with once.acquire("held").transaction(connection) as tx:
        act(tx)
    with pytest.raises(Completed) as done, once.transaction("k", connection):
        pass
    assert (done.value.result, connection.text_factory) == ("told", bytes)
    assert effects() == ["effect", "effect"]
    connection.close()
