"""``onceward package lambda``: zips that are really made, with dependencies that pip really gets, and imported as Lambda does."""

import hashlib
import json
import subprocess
import sys
import zipfile

import pytest

from command_line import Cli

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
HANDLER = """
import onceward
from onceward import Once
from onceward.aws import on_sqs

once = Once("memory:")
entered = []

@once(key="order.id")
def charge(order: dict) -> dict:
    entered.append(order)
    return {"charged": order["id"], "entered": len(entered)}

def handler(event, context):
    return charge(event)
"""
# -S: no site-packages. All but the standard library must come from the zip.
CALL = """
import sys
sys.path[:0] = sys.argv[1:]
sys.dont_write_bytecode = True
import app, json, onceward
answers = [app.handler({"id": 7}, None) for _ in range(2)]
print(json.dumps([answers, onceward.__file__, onceward.__cached__]))
"""


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    (tmp_path / "app.py").write_text(HANDLER)
    return made


def made(cli, *arguments):
    """Make a zip and return what the command tells, and the zip."""
    result = cli.run("package", "lambda", *arguments, "--json", timeout=300)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    return told, zipfile.ZipFile(cli.folder / told["path"])


def called(*folders):
    """Call the handler in an interpreter that has only these folders."""
    command = [sys.executable, "-I", "-S", "-c", CALL, *map(str, folders)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_a_function_runs_from_its_zip_with_bytecode_and_the_zip_is_reproducible(cli, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bin/tool", "alone", "notes"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o600 if name == "notes" else 0o700)
    files = ["app.py", "bin", "alone", "notes"]
    told, archive = made(cli, *files, "--bytecode", "--python", HERE)
    modes = {name: archive.getinfo(name).external_attr >> 16 for name in ("bin/tool", "alone", "notes", "app.py")}
    assert modes == {"bin/tool": 0o755, "alone": 0o755, "notes": 0o644, "app.py": 0o644}
    there = tmp_path / "task"
    archive.extractall(there)
    answers, file, _ = called(there)
    assert answers == [{"charged": 7, "entered": 1}] * 2
    assert file == str(there / "onceward" / "__init__.py")
    compiled = {name for name in archive.namelist() if name.endswith(".pyc")}
    assert any(name.startswith("onceward/__pycache__/once.") for name in compiled)
    assert any(name.startswith("__pycache__/app.") for name in compiled)
    assert told["unzipped"] == sum(entry.file_size for entry in archive.infolist())

    (tmp_path / "app.py").touch()
    again, _ = made(cli, *files, "--bytecode", "--python", HERE, "--out", "again.zip")
    first, second = (hashlib.sha256((tmp_path / one["path"]).read_bytes()).digest() for one in (told, again))
    assert first == second


@pytest.mark.slow
def test_a_layer_is_made_for_another_python_and_machine_and_is_small(cli):
    other = "3.13" if HERE != "3.13" else "3.12"
    _, archive = made(cli, "--layer", "--python", other, "--arch", "arm64")
    names = archive.namelist()
    assert names == sorted(names)
    assert {name.split("/")[0] for name in names} == {"python"}
    (core,) = [name for name in names if name.startswith("python/msgspec/_core.")]
    assert f"cpython-{other.replace('.', '')}-aarch64-linux" in core
    assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    rooms = {name.split("/")[2] for name in names if name.startswith("python/onceward/")}
    assert {"aws", "claim", "stores"} <= rooms
    assert not rooms & {"cli", "dashboard", "testing"}
    ours = [entry.compress_size for entry in archive.infolist() if entry.filename.startswith("python/onceward")]
    assert sum(ours) < 1_500_000


@pytest.mark.slow
def test_a_function_runs_beside_its_layer(cli, tmp_path):
    made(cli, "--layer", "--python", HERE)[1].extractall(tmp_path / "opt")
    task = tmp_path / "task"
    task.mkdir()
    (tmp_path / "app.py").rename(task / "app.py")
    answers, file, _ = called(task, tmp_path / "opt" / "python")
    assert answers == [{"charged": 7, "entered": 1}] * 2
    assert file.startswith(str(tmp_path / "opt"))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--python", "3.9"], 2, "--python 3.9: give one of 3.11, 3.12, 3.13, 3.14"),
        (["--arch", "mips"], 2, "--arch mips: give one of x86_64, arm64"),
        (["--layer", "app.py"], 2, "a layer holds no handler: leave out the files, or leave out --layer"),
        (["ap.py"], 1, "there is no file ap.py"),
        (["--extra", "nothing"], 1, "onceward has no extra 'nothing'. It has: "),
        (["--bytecode", "--python", "3.14" if HERE != "3.14" else "3.13"], 2, "--bytecode is for the Python that runs"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(cli, arguments, status, said):
    result = cli.run("package", "lambda", *arguments)
    assert (result.returncode, result.stdout) == (status, b"")
    assert result.stderr.startswith(f"onceward: {said}")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_dependency_that_pip_does_not_find_is_told_and_nothing_is_written(cli, tmp_path):
    cli.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    result = cli.run("package", "lambda", "app.py")
    assert result.returncode == 1
    assert "pip says: ERROR: Could not find a version that satisfies the requirement" in result.stderr
    assert not (tmp_path / "onceward-lambda.zip").exists()


@pytest.mark.slow
def test_a_file_with_the_name_of_a_dependency_is_refused(cli, tmp_path):
    (tmp_path / "msgspec.py").write_text(HANDLER)  # Python would take the package of that name
    result = cli.run("package", "lambda", "msgspec.py", timeout=300)
    assert result.returncode == 1
    assert "msgspec.py has the name of a module of onceward or its dependencies: rename it" in result.stderr
