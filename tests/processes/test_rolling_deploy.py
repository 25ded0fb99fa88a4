"""Two builds of onceward on one ledger at once: the newer one knows a field and a need more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onceward
from stores.ledgers import LEDGERS, RedisLedger

SOURCE = Path(onceward.__file__).parents[1]
# What a newer build changes: each text stands once in its file.
NEWER = {
    "core/record.py": [
        ("trace: str | None = None\n\n    @property", "trace: str | None = None\n    colour: str | None = None\n\n    @property"),
        ("trace: str | None = None\n\n    def at", "trace: str | None = None\n    colour: str | None = None\n\n    def at"),
        ("history, trace) = self", "history, trace, colour) = self"),
        ("at, origin, input_, history, trace)", "at, origin, input_, history, trace, colour)"),
    ],
    "core/writes.py": [
        ("0.0, name, None, None,", '0.0, name, "colours" if "needy" in key else None, None,'),
        ("input_, None, trace)", 'input_, None, trace, "red")'),
        ("past, trace) = record", "past, trace, colour) = record"),
        ("past, trace)  # fmt", "past, trace, colour)  # fmt"),
    ],
    "core/protocol.py": [("NEEDS: frozenset[str] = frozenset({STEPS})", 'NEEDS = frozenset({STEPS, "colours"})')],
    "stores/sqlite/schema.py": [("MINOR = 6", "MINOR = 7"), ('"trace": "TEXT"', '"trace": "TEXT", "colour": "TEXT"')],
    "stores/dynamodb/items.py": [
        ("        return item\n\n    def record", '        item["colour"] = {"S": record[-1] or "none"}\n        return item\n\n    def record'),
    ],
    "stores/mysql/schema.py": [
        ("MINOR: Final = 1", "MINOR: Final = 2"),
        ("ADDED: Final[dict[str, str]] = {}", 'ADDED: Final[dict[str, str]] = {"colour": "longtext"}'),
    ],
    "stores/redis/records.py": [
        ('"history", "trace",\n)', '"history", "trace", "colour",\n)'),
        ("input_, past, trace) = write", "input_, past, trace, colour) = write"),
        ("input_, past, trace)\n", "input_, past, trace, colour)\n"),
        ("w.history, w.trace)", "w.history, w.trace, w.colour)"),
        ('get("history"), get("trace"))', 'get("history"), get("trace"), get("colour"))'),
    ],
    "stores/postgres/schema.py": [
        ("MINOR: Final = 3", "MINOR: Final = 4"),
        ('"trace": "text",\n', '"trace": "text",\n    "colour": "text",\n'),
    ],
}  # fmt: skip
START = """
import os, random, sys, time
from onceward import Busy, Once, UnknownNeed
once = Once(sys.argv[1], name="n", lease=5)
def effect(key):
    with open("effects", "a") as file:
        file.write(f"{key}\\n")
    return key
"""
WORK = """
keys = [f"k{n}" for n in range(40)] + ["needy"]
random.Random(sys.argv[2]).shuffle(keys)
refused = 0
while keys:
    key = keys.pop(0)
    try:
        assert once.run(key, effect, key) == key
    except Busy:
        keys.append(key)
        time.sleep(0.01)
    except UnknownNeed:
        refused += 1
print(refused)
"""
DIE = """
for key in ("alone", "together", "needy"):
    once.acquire(key, lease=3)
os._exit(0)
"""
TAKE_OVER = """
assert once.using(on_busy=30).run("alone", effect, "alone") == "alone"
time.sleep(1.5)
(outcome,) = once.batch(effect, key=lambda key: key, name="n").run(["together"])
assert outcome.ok, outcome
"""
REFUSE = """
for ask in (lambda: once.run("needy", effect, "needy"), lambda: once.ledger.park("n:needy")):
    try:
        ask()
    except UnknownNeed as error:
        print(error)
"""


@pytest.fixture(params=[*LEDGERS, "redis"])
def ledger(request, tmp_path):
    if request.param != "redis":
        yield LEDGERS[request.param].fresh(request, tmp_path)
        return
    with RedisLedger.own_server(request, tmp_path) as (made, _):
        yield made


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """The folder of the newer build's source."""
    folder = tmp_path_factory.mktemp("newer")
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in NEWER.items():
        path = folder / "onceward" / name
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{name}: {old!r} is to stand there once"
            text = text.replace(old, new)
        path.write_text(text)
    return folder


class Deploy:
    """One ledger, and processes of both builds."""

    def __init__(self, folder, newer, ledger):
        self._folder, self._newer, self._url = folder, newer, ledger.url
        self.read = lambda key: ledger.stored(f"n:{key}")

    def start(self, build, code, *arguments):
        env = {**os.environ, "PYTHONPATH": str(self._newer if build == "newer" else SOURCE)}
        command = [sys.executable, "-c", START + code, self._url, *arguments]
        return subprocess.Popen(command, cwd=self._folder, env=env, stdout=subprocess.PIPE, text=True)

    def run(self, build, code):
        process = self.start(build, code)
        told, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        return told

    def effects(self):
        path = self._folder / "effects"
        return sorted(path.read_text().split()) if path.exists() else []


@pytest.fixture
def deploy(newer, ledger, tmp_path):
    return Deploy(tmp_path, newer, ledger)


@pytest.mark.sampled("mysql-newer")
@pytest.mark.parametrize("first", ["older", "newer"])
def test_both_builds_on_one_ledger_make_each_effect_once(deploy, first):
    deploy.run(first, 'once.run("first", effect, "first")')
    processes = [deploy.start(build, WORK, str(n)) for n, build in enumerate(["older", "newer"] * 2)]
    for process in processes:
        process.communicate(timeout=90)
        assert process.returncode == 0
    assert deploy.effects() == sorted(["first", "needy", *(f"k{n}" for n in range(40))])


@pytest.mark.sampled("dynamodb")
def test_the_older_build_takes_over_and_keeps_the_field_it_does_not_know(deploy):
    deploy.run("newer", DIE)
    deploy.run("older", TAKE_OVER)
    for key in ("alone", "together"):
        held = deploy.read(key)
        assert (held["status"], held["colour"]) == ("COMPLETED", "red")
    assert deploy.effects() == ["alone", "together"]


@pytest.mark.sampled("redis")
def test_the_older_build_refuses_an_unknown_need_and_newer_completes_it(deploy):
    deploy.run("newer", DIE)
    before = deploy.read("needy")
    told = deploy.run("older", REFUSE)
    assert told.count("n:needy: its record needs colours, which this version of onceward does not know") == 2
    assert deploy.read("needy") == before
    deploy.run("newer", 'assert once.using(on_busy=30).run("needy", effect, "needy") == "needy"')
    assert deploy.effects() == ["needy"]
