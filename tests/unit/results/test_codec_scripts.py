"""Classes of a script replay in the script and where it is imported."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

PROGRAM = """
import enum, sys
from dataclasses import dataclass
from onceward import Once

once = Once("sqlite:///ledger.db", name="n", final=(ValueError,))

class Colour(enum.Enum):
    RED = 1

class Declined(ValueError):
    pass

@dataclass
class Receipt:
    order: int
    colour: Colour

def charge(order):
    if order == 2:
        raise Declined("no")
    return [Receipt(order, Colour.RED)]

def outcome(order):
    try:
        [receipt] = once.run(order, charge, order)
        return type(receipt) is Receipt and receipt == Receipt(order, Colour.RED)
    except ValueError as error:
        return type(error) is Declined

if __name__ == "__main__":
    print(outcome(1), outcome(2), once.run("fingerprint", repr, 1))
"""


def run_program(folder, *arguments, program=None):
    source = os.path.dirname(os.path.dirname(sys.modules["onceward"].__file__))
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        input=program,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[:2]


IMPORTED = "import {0} as program; print(program.outcome(1), program.outcome(2))"


@pytest.mark.slow
@pytest.mark.parametrize("script_first", [True, False])
@pytest.mark.parametrize(("arguments", "module"), [(["worker.py"], "worker"), (["-m", "shop"], "shop.__main__")])
def test_a_class_of_a_script_replays_in_script_and_where_it_is_imported(tmp_path, arguments, module, script_first):
    (tmp_path / "shop").mkdir()
    for path in ("worker.py", "shop/__main__.py"):
        (tmp_path / path).write_text(PROGRAM)
    ways = [arguments, ["-c", IMPORTED.format(module)]]
    for way in ways if script_first else ways[::-1]:
        assert run_program(tmp_path, *way) == ["True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-worker.py", "json.py"])
def test_a_class_of_script_that_cannot_be_imported_replays_in_that_script(tmp_path, name):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / name).write_text("import sys; sys.path.pop(0)\n" + PROGRAM)
    for _ in range(2):
        assert run_program(tmp_path, f"scripts/{name}") == ["True", "True"]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        (text,) = connection.execute("SELECT result FROM onceward WHERE key = 'n:1'").fetchone()
    assert '"__main__:Receipt"' in text  # an earlier version can read it


@pytest.mark.slow
def test_a_record_of_a_script_by_earlier_version_replays_in_that_script(tmp_path):
    (tmp_path / "worker.py").write_text(PROGRAM)
    assert run_program(tmp_path, "worker.py") == ["True", "True"]
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        changed = connection.execute("UPDATE onceward SET result = replace(result, 'worker:', '__main__:')").rowcount
    connection.close()
    assert changed >= 2
    assert run_program(tmp_path, "worker.py") == ["True", "True"]
