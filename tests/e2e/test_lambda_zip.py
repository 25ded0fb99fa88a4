"""What docs/how-to/deploy.md shows makes a zip from which a handler runs, with dependencies that pip really gets."""

import json
import platform
import re
import subprocess
import sys
import zipfile

import pytest

from places import ROOT
from printed.pages import section

PAGE = section("docs/how-to/deploy.md", "The zip of a Lambda function")
FUNCTION, BYTECODE = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
HANDLER = """
from onceward import Once
from onceward.aws import on_sqs

once = Once("memory:")

@once(key="order.id")
def charge(order: dict) -> dict:
    return {"charged": order["id"]}

def handler(event, context):
    return charge(event)
"""
# -S: no site-packages. All but the standard library must come from the zip.
CALL = """
import sys
sys.path[:0] = sys.argv[1:]
sys.dont_write_bytecode = True
import app, json, onceward
print(json.dumps([app.handler({"id": 7}, None), onceward.__file__]))
"""


def run(block, folder, wheel):
    """Run a block of the page with this Python, on this tree."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        command = line.replace("--python-version 3.13", f"--python-version {here}")
        command = re.sub(r"(?<=manylinux2014_)\w+", platform.machine(), command)
        if line.startswith("pip "):
            command = re.sub(r"'?\bonceward\b(\[\w+\])?'?$", rf"--quiet '{wheel}\1'", f"{sys.executable} -m {command}")
        command = re.sub(r"^python ", f"{sys.executable} ", command)
        subprocess.run(command, shell=True, cwd=folder, check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_function_runs_from_its_zip(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels", ROOT]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    (tmp_path / "app.py").write_text(HANDLER)
    run(FUNCTION.replace("$ python -m zipfile", f"{BYTECODE}$ python -m zipfile"), tmp_path, wheel)
    task = tmp_path / "task"
    with zipfile.ZipFile(tmp_path / "function.zip") as archive:
        archive.extractall(task)
        assert not [one for one in archive.namelist() if "onceward/cli/" in one]
    command = [sys.executable, "-I", "-S", "-c", CALL, str(task)]
    answer, file = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (answer, file) == ({"charged": 7}, str(task / "onceward" / "__init__.py"))
    assert list((task / "onceward" / "__pycache__").glob("once.*.pyc"))
