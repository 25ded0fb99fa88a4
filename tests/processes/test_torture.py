"""A part of the torture campaign, and bugs planted to see that it finds them; ``make torture`` runs an hour of it."""

import os
import subprocess
import sys

import pytest

from places import SOURCES, SUPPORT
from postgres_servers import debian
from torture import plan

SEED = 1
EPISODES = 90
FROM, FIRST, SO_MANY = 39271, 60, 20  # episodes of a part; the FIRST have every shape on every store
PARTS = range(FROM, FROM + 160, SO_MANY)
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


def test_these_episodes_have_every_shape_on_every_store():
    made = [plan.plan(seed) for seed in range(FROM, FROM + FIRST)]
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
    ],
)
def test_the_campaign_finds_a_planted_bug(plant, shape, seen):
    wanted = ("--plant", plant, "--store", "sqlite", "--shape", shape, "--until", seen)
    done = torture(*wanted, "--episodes", EPISODES, "--jobs", 5)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{seen}: " in done.stdout
