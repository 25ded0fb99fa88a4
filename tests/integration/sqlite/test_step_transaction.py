"""A step whose effect is in the ledger's own file: effect and entry commit together, and the handler goes on."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import pytest

from onceward import Busy, Claim, Once, OncewardError, Parked, ResultWarning, StepMade, StoreError
from onceward.claim.stepping.handler_steps import HandlerSteps
from onceward.core import steps
from onceward.core.drivers import drive
from onceward.core.steps import Lost
from stores.sqlite_commits import Commits, commits_and_raises, raises, rolls_back_and_raises
from stores.transaction_cases import (  # noqa: F401 - they run here
    Failure,
    test_a_zombies_step_is_refused_and_its_effect_rolled_back,
    test_effect_and_step_commit_together_and_a_later_attempt_gets_the_result,
)


@pytest.fixture(params=[None])
def level(request):
    return request.param


def act(connection, value="effect"):
    connection.execute("INSERT INTO effects VALUES (?)", (value,))


def handler(once, body):
    @once(key="n", name="place")
    def place(n, claim: Claim):
        return body(claim)

    return lambda: place(1)


def test_a_large_result_commits_with_its_step_and_its_effect(once, path, effects, connection):
    def body(claim):
        with claim.step_transaction("stock", connection) as stock:
            act(connection)
            stock.result = "x" * 20_000
            if claim.attempt == 1:
                connection.execute("INSERT INTO nothing VALUES (1)")
        raise Failure

    with pytest.raises(sqlite3.OperationalError):
        handler(once, body)()
    assert (effects(), len(list(once.ledger.records()))) == ([], 1)
    with pytest.raises(Failure):
        handler(once, body)()
    assert (effects(), len(list(once.ledger.records()))) == (["effect"], 2)
    with pytest.raises(StepMade) as made:
        handler(once, body)()
    assert made.value.result == "x" * 20_000


def test_nobody_takes_over_while_it_is_open_and_its_commit_renews(once, path, effects, connection):
    other = Once(f"sqlite:///{path}?timeout=0.1")
    claim = once.acquire("k", lease=1.0)
    with claim.step_transaction("stock", connection):
        time.sleep(1.2)
        assert not claim.lost
        with pytest.raises(StoreError):
            other.acquire("k")
        act(connection)
    assert not claim.lost
    with pytest.raises(Busy):
        other.acquire("k")
    claim.complete()
    assert effects() == ["effect"]
    other.close()


@pytest.mark.parametrize("outer", ["step", "completion"])
@pytest.mark.parametrize("same", [True, False])
def test_a_transaction_within_it_is_refused_and_frees_nothing(once, path, effects, connection, outer, same):
    second = connection if same else sqlite3.connect(path)
    claim = once.acquire("k")
    with claim.step_transaction("stock", connection) if outer == "step" else claim.transaction(connection):
        act(connection)
        with pytest.raises(OncewardError, match="a transaction holds"), claim.transaction(second):
            pass
        if outer == "step":
            with pytest.raises(OncewardError, match="a transaction holds"):
                claim.step("mail", print)
            with pytest.raises(OncewardError, match="a transaction holds"), claim.step_transaction("b", second):
                pass
        assert claim.paused
        with pytest.raises(OncewardError, match="a transaction holds"):
            claim.complete(5)
    assert effects() == ["effect"]
    second.close()


def test_of_two_threads_with_one_name_one_makes_the_step(once, path, effects, monkeypatch):
    both, begin = threading.Barrier(2, timeout=30), HandlerSteps.begin

    def begins(*args, **options):
        found = begin(*args, **options)
        both.wait()  # neither has begun its transaction
        return found

    monkeypatch.setattr(HandlerSteps, "begin", begins)

    def make(claim):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            with claim.step_transaction("stock", connection):
                act(connection)

    with once.claim("k") as claim, ThreadPoolExecutor(2) as pool:
        made = [pool.submit(make, claim).exception for _ in range(2)]
        (refused,) = [error for exception in made if (error := exception()) is not None]
    assert "two steps of this attempt have the name 'stock'" in str(refused)
    assert effects() == ["effect"]


def test_a_step_that_ends_beside_it_is_recorded_after_it(once, path, connection):
    begun, end = threading.Event(), threading.Event()

    def slow():
        begun.set()
        end.wait(20)

    with once.claim("k") as claim:
        beside = threading.Thread(target=claim.step, args=("slow", slow))
        beside.start()
        begun.wait(20)
        with claim.step_transaction("stock", connection):
            act(connection)
            end.set()
            beside.join(0.2)
            assert beside.is_alive()
        beside.join(20)
        assert [name in claim.record.steps for name in ("stock", "slow")] == [True, True]


IO_ERROR = sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), IO_ERROR], ids=["interrupt", "error"])
@pytest.mark.parametrize("at_commit", [commits_and_raises, rolls_back_and_raises, raises])
def test_trouble_at_the_commit_leaves_both_or_neither(once, path, effects, at_commit, error):
    connection, caught = Commits(sqlite3.connect(path, isolation_level=None), at_commit(error)), []
    with suppress(KeyboardInterrupt, StoreError), once.claim("k") as claim:
        try:
            with claim.step_transaction("stock", connection):
                act(connection)
        except BaseException as raised:
            caught.append(raised)
            raise
    made, record = effects(), next(once.ledger.records())[0]
    assert made == (["effect"] if at_commit is commits_and_raises else [])
    assert bool(made) == (record.steps is not None)
    assert (error is IO_ERROR and bool(made)) == (not caught), (
        "a reply that is an error is no failure of a commit that was made"
    )
    connection.close()


class InTrouble(Commits):
    """A connection that fails to roll back, too."""

    def __init__(self, path, at_commit, second):
        super().__init__(sqlite3.connect(path, isolation_level=None), at_commit)
        self._second = second

    def execute(self, sql, *parameters):
        if sql.startswith("ROLLBACK TO") and self._second is not None:
            self._second, second = None, self._second
            raise second
        return super().execute(sql, *parameters)


SECOND = pytest.mark.parametrize("second", [KeyboardInterrupt(), sqlite3.DatabaseError("the file is gone")])


@SECOND
@pytest.mark.parametrize("first", [KeyboardInterrupt(), IO_ERROR])
def test_after_a_second_trouble_at_the_commit_no_step_begins_and_nothing_undone_is_written(
    once, path, effects, first, second
):
    connection = InTrouble(path, raises(first), second)
    ran = []

    def handle(claim: Claim):
        with suppress(KeyboardInterrupt, StoreError), claim.step_transaction("stock", connection):
            act(connection)
        claim.step("stock", ran.append, 1)

    with pytest.raises(StoreError, match="nobody could say whether its step 'stock' was committed"):
        once.run("k", handle)
    record = next(once.ledger.records())[0]
    assert (ran, effects(), record.status, record.steps) == ([], [], "IN_PROGRESS", None)
    connection.close()


@SECOND
def test_a_renewal_that_was_rolled_back_does_not_bring_a_released_key_back(once, path, second):
    connection = InTrouble(path, None, second)
    claim = once.acquire("k")
    with pytest.raises((KeyboardInterrupt, StoreError)), claim.step_transaction("stock", connection):
        raise ZeroDivisionError
    beat = partial(steps.heartbeat, once.store, [(claim.record, 60.0)], [claim.policy], claim.clock)
    claim.release("failed")
    assert [type(one) for one in drive(beat(), once.store)] == [Lost]
    assert [record.status for record, _ in once.ledger.records()] == ["RELEASED"]
    connection.close()


def test_a_step_that_an_attempt_may_have_made_otherwise_stops_it(once, path, effects, connection):
    def interrupted():
        raise KeyboardInterrupt

    claim = once.acquire("k", lease=1)
    with pytest.raises(KeyboardInterrupt):
        claim.step("stock", interrupted, on_lapse="park")
    time.sleep(1.1)
    with pytest.raises(Parked, match="'stock'"), once.claim("k") as again, again.step_transaction("stock", connection):
        act(connection)
    assert effects() == []


def test_a_result_that_cannot_be_stored_is_warned_of_after_the_commit(once, path, effects, connection):
    with pytest.raises(ResultWarning, match="'stock'"), once.claim("k") as claim:
        with claim.step_transaction("stock", connection) as stock:
            act(connection)
            stock.result = object()
    assert effects() == ["effect"]
    with pytest.raises(Parked, match="'stock'"), once.claim("k") as claim, claim.step_transaction("stock", connection):
        act(connection, "twice")
    assert effects() == ["effect"]


def test_no_version_that_was_rolled_back_comes_again(once, connection):
    rolled_back = []
    with once.claim("k") as claim:
        for begin in (claim.transaction, partial(claim.step_transaction, "stock"), claim.transaction):
            with suppress(Failure), begin(connection):
                rolled_back.append(claim.record.version)
                raise Failure
        for _ in range(3):
            claim.extend()
            assert claim.record.beat < min(beat for _, _, beat in rolled_back) - 100
    assert len(set(rolled_back)) == 3
