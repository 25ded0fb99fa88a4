"""The built site, for all tests of it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the site. The first test builds it, strictly; tests that run beside that one wait."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the run
    made = folder / "site"
    with open(folder / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "built").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert built.returncode == 0, built.stderr
            (made / "built").touch()
    return made
