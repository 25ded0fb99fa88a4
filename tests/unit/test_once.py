"""Once: what it opens, hands out and costs."""

import json
import os
import subprocess
import sys

import pytest

import onceward
from onceward import Completed, Once
from onceward.stores.memory import MemoryStore
from tables import each

SRC = os.path.dirname(os.path.dirname(onceward.__file__))


def run_python(code, *args, cwd=None, flags=("-W", "error")):
    done = subprocess.run(
        [sys.executable, *flags, "-c", code, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_onceward_loads_no_driver_and_nothing_that_is_dear():
    loaded = run_python("import sys, json, onceward; print(json.dumps(sorted(sys.modules)))")
    dear = {
        "boto3",
        "typer",
        "rich",
        "asyncio",
        "pydantic",
        "msgspec",
        "jmespath",
        "sqlite3",
        "urllib3",
        "aiohttp",
        "inspect",
        "dataclasses",
    }
    assert not dear & set(json.loads(loaded))


def test_using_changes_the_defaults_of_a_new_once_on_the_same_store():
    once = Once(MemoryStore(), lease=5, max_attempts=3)
    other = once.using(lease=8)
    assert other.store is once.store
    assert (other.policy.lease, other.policy.max_attempts) == (8, 3)
    assert once.policy.lease == 5


def test_a_claim_context_can_be_entered_again_after_it_was_left():
    once = Once(MemoryStore())
    context = once.claim("k")
    with pytest.raises(ZeroDivisionError), context:
        1 / 0
    with context as claim:
        assert claim.attempt == 2
    with pytest.raises(Completed), context:
        pass


@each("key", [None, "", (1, None), {}])
def test_a_missing_key_never_becomes_an_unprotected_call(key):
    once = Once(MemoryStore())
    guarded = once(key="k", name="n")(lambda k: pytest.fail("it ran"))
    for call in (
        lambda: once.run(key, pytest.fail),
        lambda: once.claim(key),
        lambda: once.acquire(key),
        lambda: guarded(key),
    ):
        with pytest.raises(onceward.KeyMissing):
            call()
    assert once.store.records == {}
