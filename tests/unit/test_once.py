"""Once: what it opens, hands out, costs and refuses; and what is public is in public-api.txt."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onceward
from onceward import Completed, Once
from onceward.aws import Queue
from onceward.observe.otel_metrics import observe_ledger
from onceward.observe.prometheus import PrometheusLedger
from onceward.outbox import HttpTarget, Relay, register
from onceward.pipelines import load
from onceward.stores.dynamodb import open_table
from onceward.stores.memory import MemoryStore
from places import SOURCES
from tables import each


def test_importing_onceward_loads_no_driver_and_nothing_that_is_dear():
    code = "import sys, json, onceward; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    loaded = subprocess.check_output([sys.executable, "-W", "error", "-c", code], env=environment)
    dear = {"boto3", "typer", "rich", "asyncio", "pydantic", "msgspec", "jmespath", "sqlite3", "inspect", "dataclasses"}
    assert not dear & set(json.loads(loaded))


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
    for call in (lambda: once.run(key, int), lambda: once.claim(key), lambda: once.acquire(key), lambda: guarded(key)):
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


CONSTRUCTORS = [
    *(Once, Queue, Relay, load, open_table, PrometheusLedger, observe_ledger),
    lambda value: register(value, HttpTarget),
]


@each("value", [None, 7, ["a"], b"bytes"])
@each("make", CONSTRUCTORS)
def test_a_value_of_another_type_is_refused_with_what_to_give(make, value):
    with pytest.raises((TypeError, ValueError), match=r"give|a secret is missing") as refused:
        make(value)
    assert "bytes'" not in str(refused.value)  # the value can be a secret


ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "release"))

from public_api import LISTED, RELEASED, api, breaking, unannounced  # noqa: E402 # release/ is no package

CHANGELOG = "# Changelog\n\n## 2.0.0\n### Added\n- `once`\n\n### Breaking\n- `run` has no `key`.\n\n## 1.0.0\n### Breaking\n- `gone`\n"


@pytest.mark.slow
def test_the_list_is_up_to_date():
    assert LISTED.read_text() == api(), "the public API has changed: run `make api`, and look at the difference"


def test_what_broke_since_the_last_release_is_in_the_changelog():
    released = RELEASED.read_text() if RELEASED.exists() else ""
    assert unannounced(breaking(released, LISTED.read_text()), (ROOT / "CHANGELOG.md").read_text()) == []


@each(
    ("old", "new", "said"),
    [
        ("f: def f(a)", "", "f is gone"),
        ("f: def f(a)", "f: async def f(a)", "f: was def f(a), is async def f(a)"),
        ("f: def f(a, b)", "f: def f(b, a)", "f: was def f(a, b), is def f(b, a)"),
        ("f: def f(a, *, b=1)", "f: def f(a)", "f: has no parameter b"),
        ("f: def f(a)", "f: def f(a, b)", "f: requires b"),
        ("f: def f(a=1)", "f: def f(a)", "f: requires a"),
        ("f: def f(a)\nf: def f(b)", "f: def f(a)", "f: was def f(b), is None"),
    ],
)
def test_a_change_that_breaks_callers_is_found(old, new, said):
    assert breaking(old, new) == [said]


@each(
    ("old", "new"),
    [
        ("f: def f(a)", "f: def f(a)\ng: class"),
        ("f: def f(a)", "f: def f(a, b=None, *, c=1)"),
        ("f: def f(a, *, b)", "f: def f(a, *, b=1)"),
        ("f: def f(a=1)", "f: def f(a=2)"),
    ],
)
def test_a_change_that_breaks_nobody_is_none(old, new):
    assert breaking(old, new) == []


def test_a_change_must_be_in_the_newest_section_of_the_changelog():
    changes = ["onceward.Once.run: has no parameter key", "onceward.gone is gone", "onceward.once is gone"]
    assert unannounced(changes, CHANGELOG) == changes[1:]
