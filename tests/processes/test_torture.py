"""A few episodes of torture, and bugs planted to see that it finds them; ``make torture`` runs an hour of it."""

import os
import subprocess
import sys

import pytest

from places import SOURCES, SUPPORT

SEED = 1
EPISODES = 90  # in which a planted bug is found
FIRST, SO_MANY = 899, 6  # these have every store, and shapes of every kind
LONGEST = 600.0  # seconds, on a machine that does much else


def torture(*options: object) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "torture", *map(str, options)],
        cwd=SUPPORT,
        env=environment | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )


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
    done = torture(*wanted, "--seed", SEED, "--episodes", EPISODES, "--jobs", 5)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{seen}: " in done.stdout
