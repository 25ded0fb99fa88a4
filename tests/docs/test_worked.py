"""The worked examples of CONTRIBUTING apply to this tree, and their tests pass."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from places import DOCS, ROOT, SOURCES


@pytest.mark.parametrize("name", ["sender", "broker", "store"])
def test_the_example_applies_and_its_test_passes(name, tmp_path):
    diff = DOCS / "worked" / f"{name}.diff"
    text = diff.read_text(encoding="utf-8")
    assert text.count("\n") <= 300
    shutil.copytree(SOURCES, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for file in re.findall(r"^--- a/(?!src/)(.+)$", text, re.MULTILINE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    applied = subprocess.run(["git", "apply", "-C1", str(diff)], cwd=tmp_path, capture_output=True, text=True)
    assert applied.returncode == 0, f"make docs/worked/{name}.diff anew: {applied.stderr}"
    (test,) = re.findall(r"^\+\+\+ b/(tests/.+)$", text, re.MULTILINE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", test]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
