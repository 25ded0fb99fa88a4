"""Histories of each store under faults, which porcupine judges; and defects that it must see. ``make histories`` makes more of them."""

import fcntl
import itertools

import pytest

from histories.grounds import GROUNDS
from histories.plants import PLANTS
from histories.run import KINDS, Asked, checker, judge, run
from torture.journal import Journal

SEED = 29
HERE = {
    "memory": "plain",
    "sqlite": "kills",
    "postgresql": "failover",
    "mysql": "restart",
    "redis": "kills",
    "dynamodb": "restart",
}  # `make nightly` has each kind on each store
LATER = {"mysql", "redis", "dynamodb"}  # torture has them each time
HERE_TOO = {"blind-swap"}  # `make nightly` has all plants


@pytest.fixture(scope="module")
def program(run_folder):
    with (run_folder / "checker.lock").open("w") as lock:  # it is compiled once a run
        fcntl.flock(lock, fcntl.LOCK_EX)
        return checker(run_folder)


@pytest.mark.usefixtures("faketime")
@pytest.mark.parametrize(
    "store", [pytest.param(one, marks=pytest.mark.nightly) if one in LATER else one for one in GROUNDS]
)
def test_some_order_explains_what_each_client_of_a_store_was_answered(store, program):
    found = run(Asked(store, SEED, seconds=1, kind=HERE[store]), program)
    assert not found.finding, found.finding
    assert found.told


def test_each_kind_of_run_is_here():
    assert set(HERE.values()) == set(KINDS)
    assert HERE.keys() == GROUNDS.keys()


@pytest.mark.parametrize(
    "plant", [one if one in HERE_TOO else pytest.param(one, marks=pytest.mark.nightly) for one in PLANTS]
)
def test_no_order_explains_a_history_with_a_planted_defect(plant, program):
    asked = (Asked("memory", seed, seconds=2, plant=plant) for seed in range(SEED, SEED + 4))
    assert any("no order of the operations" in run(one, program).finding for one in asked), (
        "the plant was never seen"
    )  # on a busy machine it may have met nobody


@pytest.mark.nightly
def test_no_order_explains_what_a_replica_has_not_heard_of(program):
    asked = (Asked("redis", seed, seconds=12, kind="failover", synchronous=False) for seed in range(SEED, SEED + 4))
    assert any("(register)" in run(one, program).finding for one in asked), (
        "nothing was ever lost"
    )  # on a busy machine it may not be


# --- histories made by hand ---------------------------------------------------------------------------------------


class History:
    """Writes a history by hand, one operation after the other; times are in seconds."""

    def __init__(self, folder, program):
        self._folder, self._program = folder, program
        self._journal, self._numbers = Journal(folder / "history-0"), itertools.count()

    def write(self, begin, end, made, seen=None, answer=None):
        """Write an insert, or a swap of what was seen. No ``end`` is no answer; ``answer`` is the record of a refusal."""
        number = next(self._numbers)
        kind = "insert" if seen is None else "swap"
        more = {"write": made | {"lease": 10.0}} | ({} if seen is None else {"seen": seen})
        self._journal("invoke", op=str(number), kind=kind, key="k", t=int(begin * 1e9), **more)
        if end is not None:
            shown = made if answer is None else answer
            self._journal("return", op=str(number), won=answer is None, record=shown, t=int(end * 1e9))

    def whole(self, kind, begin, end, **more):
        self._journal("whole", kind=kind, key="k", began=int(begin * 1e9), t=int(end * 1e9), **more)

    @property
    def finding(self):
        return judge(self._program, self._folder).finding


@pytest.fixture
def history(tmp_path, program):
    return History(tmp_path, program)


def record(owner, fence, beat=0, status="IN_PROGRESS", result=None):
    text = f"{owner} {status} {result}"
    version = {"owner": owner, "fence": fence, "beat": beat}
    return version | {"status": status, "result": result, "data": text, "whole": f"{text} {fence} {beat}"}


def test_a_write_without_an_answer_may_have_been_made(history):
    history.write(0, None, record("a", 1))
    history.write(1, 2, record("b", 2), answer=record("a", 1))
    assert not history.finding


def test_a_write_without_an_answer_may_not_have_been_made(history):
    history.write(0, None, record("a", 1))
    history.write(1, 2, record("b", 2))
    assert not history.finding


def test_two_inserts_of_one_key_are_not_both_made(history):
    history.write(0, 1, record("a", 1))
    history.write(2, 3, record("b", 2))
    assert "(register)" in history.finding


def test_a_refusal_may_show_the_record_of_any_time_while_it_was_asked_for(history):
    history.write(0, 1, record("a", 1))
    history.write(1.5, 3, record("b", 2), answer=record("a", 1))
    history.write(2, 2.5, record("a", 1, 1), seen=record("a", 1))
    assert not history.finding


def test_a_refusal_does_not_show_a_record_of_before_it_was_asked_for(history):
    history.write(0, 1, record("a", 1))
    history.write(2, 2.5, record("a", 1, 1), seen=record("a", 1))
    history.write(3, 4, record("b", 2), answer=record("a", 1))
    assert "(register)" in history.finding


def test_a_live_lease_is_not_taken_over(history):
    history.write(0, 1, record("a", 1))
    history.write(8, 9, record("b", 2), seen=record("a", 1))
    assert "(protocol)" in history.finding


def test_a_lapsed_lease_is_taken_over(history):
    history.write(0, 1, record("a", 1))
    history.write(11, 12, record("b", 2), seen=record("a", 1))
    assert not history.finding


def test_a_renewal_without_an_answer_holds_the_lease_if_somebody_met_it(history):
    history.write(0, 1, record("a", 1))
    history.write(8, None, record("a", 1, 1), seen=record("a", 1))
    history.write(11, 12, record("b", 2), seen=record("a", 1, 1))
    assert "(protocol)" in history.finding


def test_fences_grow(history):
    history.write(0, 1, record("a", 5))
    history.write(11, 12, record("b", 5), seen=record("a", 5))
    assert history.finding


def test_a_completed_record_stays(history):
    done = record("a", 1, 1, "COMPLETED", '"x"')
    history.write(0, 1, record("a", 1))
    history.write(1, 2, done, seen=record("a", 1))
    history.write(30, 31, record("b", 2), seen=done)
    assert "(protocol)" in history.finding


def test_a_caller_is_told_what_is_recorded(history):
    history.write(0, 1, record("a", 1))
    history.write(1, 2, record("a", 1, 1, "COMPLETED", '"x"'), seen=record("a", 1))
    history.whole("told", 0, 3, value="x")
    assert not history.finding
    history.whole("told", 0, 3, value="y")
    assert "(protocol)" in history.finding


def test_nobody_is_told_a_result_before_it_is_recorded(history):
    history.write(0, 1, record("a", 1))
    history.whole("told", 0, 2, value="x")
    history.write(3, 4, record("a", 1, 1, "COMPLETED", '"x"'), seen=record("a", 1))
    assert "(protocol)" in history.finding


def test_nobody_believes_in_a_claim_that_was_taken_over(history):
    history.write(0, 1, record("a", 1))
    history.whole("believed", 2, 3, fence=1)
    history.write(11, 12, record("b", 2), seen=record("a", 1))
    assert not history.finding
    history.whole("believed", 13, 14, fence=1)
    assert "(protocol)" in history.finding


def test_a_claim_makes_one_effect(history):
    history.write(0, 1, record("a", 1))
    history.whole("effect", 2, 3, fence=1)
    assert not history.finding
    history.whole("effect", 4, 5, fence=1)
    assert "(protocol)" in history.finding


def test_a_claim_may_get_a_larger_fence_before_it_is_answered(history):
    history.write(0, 2, record("a", 0), answer=record("a", 5))
    history.write(0.5, 1, record("b", 0), answer=record("a", 3))
    history.write(1.2, 1.4, record("b", 4), seen=record("a", 3), answer=record("a", 5))
    assert not history.finding


def test_a_claim_may_be_lost_before_it_is_answered(history):
    history.write(0, 30, record("a", 0), answer=record("b", 4))
    history.write(1, 2, record("c", 0), answer=record("a", 3))
    history.write(12, 13, record("b", 4), seen=record("a", 3))
    assert not history.finding


def test_a_completion_is_not_refused_and_made(history):
    history.write(0, 1, record("a", 1))
    history.write(2, 9, record("a", 1, 1, "RELEASED"), seen=record("a", 1), answer=record("b", 2))
    history.write(4, 5, record("c", 0), answer=record("a", 1, 1, "RELEASED"))
    history.write(6, 7, record("b", 2), seen=record("a", 1, 1, "RELEASED"))
    assert "(register)" in history.finding
