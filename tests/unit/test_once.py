"""Once: what it opens, hands out and costs."""

import importlib
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


def test_importing_onceward_loads_no_driver_and_nothing_that_is_dear():
    code = "import sys, json, onceward; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": SRC}
    loaded = subprocess.check_output([sys.executable, "-W", "error", "-c", code], env=environment)
    dear = {"boto3", "typer", "rich", "asyncio", "pydantic", "msgspec", "jmespath", "sqlite3", "inspect", "dataclasses"}
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


def test_a_missing_library_of_an_extra_is_told_with_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "toykit").mkdir()
    (tmp_path / "toykit" / "inner.py").write_text("import toylib\n")
    (tmp_path / "toykit" / "other.py").write_text("import toyelse\n")
    (tmp_path / "toykit" / "__init__.py").write_text(
        "from onceward.lazily import lazily\n"
        "homes = {'.inner': ('charge',), '.other': ('refund',)}\n"
        "__getattr__, __dir__ = lazily(__name__, homes, needs=('toylib',))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    toykit = importlib.import_module("toykit")
    with pytest.raises(ModuleNotFoundError, match=r"toykit needs toylib: pip install 'onceward\[toykit\]'"):
        toykit.charge
    with pytest.raises(ModuleNotFoundError, match="No module named 'toyelse'"):
        toykit.refund
    with pytest.raises(AttributeError, match="module 'toykit' has no attribute 'chrge'"):
        toykit.chrge
