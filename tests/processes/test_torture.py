"""A part of the torture campaign, and bugs planted to see that it finds them; ``make torture`` runs an hour of it."""

import os
import subprocess
import sys

import pytest

from places import SOURCES, SUPPORT
from servers.postgres import debian
from torture import plan

SEED = 1
EPISODES = 90
FROM, FIRST, SO_MANY = 380, 160, 20  # episodes of a part; the FIRST have every shape on every store
PARTS = range(FROM, FROM + FIRST, SO_MANY)
MARIADB, OF_MARIADB = range(382, 412, 15), 15  # parts of their own, on that store alone
REDIS, OF_REDIS = 2363, 14  # the episodes on Redis, which have every shape
LONGEST = 600.0  # seconds, on a machine that does much else


def torture(*options: object, seed: int = SEED) -> subprocess.CompletedProcess:
    debian()  # or this test is skipped
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "torture", "--seed", str(seed), *map(str, options)],
        cwd=SUPPORT,
        env=environment | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )


@pytest.mark.usefixtures("faketime")
@pytest.mark.parametrize("first", PARTS)
def test_a_torture_campaign_finds_no_double_effect_no_lost_one_and_no_lie(first):
    done = torture("--episodes", SO_MANY, "--jobs", 3, seed=first)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("faketime", "mariadb")
@pytest.mark.parametrize("first", MARIADB)
def test_a_torture_campaign_on_mariadb_finds_none_of_these(first):
    done = torture("--episodes", OF_MARIADB, "--jobs", 4, "--store", "mysql", seed=first)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("faketime")
def test_a_torture_campaign_on_redis_finds_none_of_these():
    done = torture("--episodes", OF_REDIS, "--jobs", 3, "--store", "redis", seed=REDIS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_these_episodes_have_every_shape_on_every_store():
    made = [plan.plan(seed) for seed in range(FROM, FROM + FIRST)]
    made += [plan.plan(first + n, ("mysql",)) for first in MARIADB for n in range(OF_MARIADB)]
    made += [plan.plan(REDIS + n, ("redis",)) for n in range(OF_REDIS)]
    assert {(one.store, one.shape) for one in made} == {
        (s, shape) for s, shapes in plan.SHAPES.items() for shape in shapes
    }


@pytest.mark.usefixtures("faketime")
@pytest.mark.parametrize(
    ("plant", "shape", "seen"),
    [
        ("lost-claim", "run", "never_a_falsehood"),  # the reply to a claim is lost, and its own claim is not recognised
        ("abandoned", "run", "never_twice"),  # an interrupt ends the settling before the outcome is recorded
        ("failed-commit", "transaction", "never_a_falsehood"),  # a COMMIT that failed counts as made
        ("forked-child", "run", "never_a_falsehood"),  # a forked child ends what its parent has claimed
        ("forgotten-steps", "steps", "never_a_step_again"),  # the next claim of a key forgets its recorded steps
        ("sent-early", "messages", "never_sent_uncommitted"),  # messages are sent before their completion is committed
        ("struck-out-early", "messages", "never_unsent"),  # messages are struck out before they are sent
    ],
)
def test_the_campaign_finds_a_planted_bug(plant, shape, seen):
    wanted = ("--plant", plant, "--store", "sqlite", "--shape", shape, "--until", seen)
    done = torture(*wanted, "--episodes", EPISODES, "--jobs", 5)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{seen}: " in done.stdout
