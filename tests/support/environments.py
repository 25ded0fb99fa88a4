"""Environments of Python for libraries that do not fit beside our pins. pip makes each once."""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from places import ROOT, SOURCES, SUPPORT, WORKERS
from servers import CACHE, missing

OURS = ["msgspec==0.22.0", "jmespath==1.1.0"]


def environment(name: str, needs: list[str]) -> Path:
    """Return the Python of an environment with the packages in ``needs``."""
    needs = [*needs, *OURS]
    folder = CACHE / f"{name}-{sha256(' '.join(needs).encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if (folder / "made").exists():
        return python
    CACHE.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    done = subprocess.run([python, "-m", "pip", "install", "-q", *needs], capture_output=True, text=True, timeout=1200)
    if done.returncode:
        shutil.rmtree(folder)
        missing(f"pip could not fetch {', '.join(needs)}: {done.stderr[-300:]}")
    (folder / "made").touch()
    return python


def run_page(python: Path, script: str, page: Path, folder: Path) -> str:
    """Run a worker script that runs a page, and return what it prints."""
    command = [python, WORKERS / script, page.relative_to(ROOT), folder]
    env = {"PYTHONPATH": f"{SOURCES}:{SUPPORT}", "PATH": "/usr/bin:/bin", "HOME": str(folder), "DO_NOT_TRACK": "1"}
    env["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "120"  # on a busy machine
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
