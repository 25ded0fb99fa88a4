"""Histories of each store under faults, which porcupine judges, and episodes of torture; and defects that both must see."""

import fcntl
import itertools
import os
import subprocess
import sys

import pytest

from histories.recording import PLANTS
from histories.run import GROUNDS, KINDS, Asked, checker, judge, run
from places import SOURCES, SUPPORT
from torture.facts import Journal

SEED = 29
# `make nightly` has each kind on each store
HERE = {"memory": "plain", "sqlite": "kills", "postgresql": "failover"}
HERE |= {"mysql": "restart", "redis": "kills", "dynamodb": "restart"}
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
    assert set(HERE.values()) == set(KINDS)
    found = run(Asked(store, SEED, seconds=1, kind=HERE[store]), program)
    assert not found.finding, found.finding
    assert found.told


@pytest.mark.parametrize(
    "plant", [one if one in HERE_TOO else pytest.param(one, marks=pytest.mark.nightly) for one in PLANTS]
)
def test_no_order_explains_a_history_with_a_planted_defect(plant, program):
    asked = (Asked("memory", seed, seconds=2, plant=plant) for seed in range(SEED, SEED + 4))
    # On a busy machine it may have met nobody.
    assert any("no order of the operations" in run(one, program).finding for one in asked), "it was never seen"


@pytest.mark.nightly
def test_no_order_explains_what_a_replica_has_not_heard_of(program):
    asked = (Asked("redis", seed, seconds=12, kind="failover", synchronous=False) for seed in range(SEED, SEED + 4))
    # On a busy machine it may not be.
    assert any("(register)" in run(one, program).finding for one in asked), "nothing was ever lost"


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

    def add(self, begin, end, what, *more):
        if isinstance(what, dict):
            self.write(begin, end, what, *more)
        else:
            self._journal("whole", kind=what, key="k", began=int(begin * 1e9), t=int(end * 1e9), **more[0])

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


A, A1, B, C = record("a", 1), record("a", 1, 1), record("b", 2), record("c", 0)
DONE, GIVEN_BACK = record("a", 1, 1, "COMPLETED", '"x"'), record("a", 1, 1, "RELEASED")
CLAIMED = (0, 1, A)
# By what is found, and by a name: the operations (begin, end, write, seen, answer). None as an end is no answer.
HISTORIES = {
    "": {
        "a write without an answer may have been made": [(0, None, A), (1, 2, B, None, A)],
        "a lapsed lease is taken over": [CLAIMED, (11, 12, B, A)],
    },
    "(register)": {
        "two inserts of one key are not both made": [CLAIMED, (2, 3, B)],
        "a refusal does not show a record of before it was asked for": [CLAIMED, (2, 2.5, A1, A), (3, 4, B, None, A)],
        "a completion is not refused and made": [
            CLAIMED,
            (2, 9, GIVEN_BACK, A, B),
            (4, 5, C, None, GIVEN_BACK),
            (6, 7, B, GIVEN_BACK),
        ],
    },
    "(protocol)": {
        "a live lease is not taken over": [CLAIMED, (8, 9, B, A)],
        "a renewal without an answer holds the lease if somebody met it": [CLAIMED, (8, None, A1, A), (11, 12, B, A1)],
        "a completed record stays": [CLAIMED, (1, 2, DONE, A), (30, 31, B, DONE)],
        "a caller is told nothing but what is recorded": [CLAIMED, (1, 2, DONE, A), (0, 3, "told", {"value": "y"})],
        "nobody is told a result before it is recorded": [CLAIMED, (0, 2, "told", {"value": "x"}), (3, 4, DONE, A)],
        "nobody believes in a claim that was taken over": [CLAIMED, (11, 12, B, A), (13, 14, "believed", {"fence": 1})],
        "a claim makes no second effect": [CLAIMED, (2, 3, "effect", {"fence": 1}), (4, 5, "effect", {"fence": 1})],
    },
    "(": {
        "fences grow": [(0, 1, record("a", 5)), (11, 12, record("b", 5), record("a", 5))],
    },
}


@pytest.mark.parametrize(("found", "name"), [(found, name) for found, named in HISTORIES.items() for name in named])
def test_the_judge_finds_what_cannot_be(found, name, history):
    for operation in HISTORIES[found][name]:
        history.add(*operation)
    assert found in history.finding
    assert bool(found) is bool(history.finding)


FIRST_SEED = 1
EPISODES = 90  # in which a planted bug is found
FIRST, SO_MANY = 899, 6  # these have every store, and shapes of every kind
LONGEST = 600.0  # seconds, on a machine that does much else


def torture(*options: object) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    run = {"cwd": SUPPORT, "env": environment | {"PYTHONPATH": str(SOURCES)}, "timeout": LONGEST}
    return subprocess.run([sys.executable, "-m", "torture", *map(str, options)], capture_output=True, text=True, **run)


@pytest.mark.usefixtures("faketime", "dynoxide", "postgres15", "mariadb", "redis")
def test_episodes_of_torture_find_no_double_effect_no_lost_one_and_no_lie(run_folder):
    done = torture("--seed", FIRST, "--episodes", SO_MANY, "--jobs", 3, "--servers", run_folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.sampled("forgotten-steps")
@pytest.mark.usefixtures("faketime")
@pytest.mark.parametrize(
    ("plant", "shape", "seen"),
    [
        ("lost-claim", "run", "never_a_falsehood"),  # the reply to a claim is lost, and its own claim is not recognised
        ("abandoned", "run", "never_twice"),  # an interrupt ends the settling before the outcome is recorded
        ("failed-commit", "transaction", "never_a_falsehood"),  # a COMMIT that failed counts as made
        ("forgotten-steps", "steps", "never_a_step_again"),  # the next claim of a key forgets its recorded steps
    ],
)
def test_the_campaign_finds_a_planted_bug(plant, shape, seen):
    wanted = ("--plant", plant, "--store", "sqlite", "--shape", shape, "--until", seen)
    done = torture(*wanted, "--seed", FIRST_SEED, "--episodes", EPISODES, "--jobs", 5)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{seen}: " in done.stdout
