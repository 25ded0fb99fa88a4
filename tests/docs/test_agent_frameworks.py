"""The page on agent frameworks runs with the frameworks themselves, in an environment of their own: they do not fit beside our pins."""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from places import DOCS, ROOT, SOURCES, SUPPORT, WORKERS
from servers import CACHE, missing

PAGE = DOCS / "how-to" / "agent-frameworks.md"
NEEDS = [
    "langchain==1.5.2",
    "langgraph==1.2.24",
    "langgraph-checkpoint-sqlite==3.1.2",
    "pydantic-ai-slim==2.68.0",
    "openai-agents==0.24.0",
    "google-adk==2.13.0",
    "strands-agents==1.62.0",
    "msgspec",
    "jmespath",
]


def environment() -> Path:
    """Return the Python of an environment with the frameworks, made with pip once."""
    folder = CACHE / f"frameworks-{sha256(' '.join(NEEDS).encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if (folder / "made").exists():
        return python
    CACHE.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    done = subprocess.run([python, "-m", "pip", "install", "-q", *NEEDS], capture_output=True, text=True, timeout=1200)
    if done.returncode:
        shutil.rmtree(folder)
        missing(f"pip could not fetch the agent frameworks: {done.stderr[-300:]}")
    (folder / "made").touch()
    return python


@pytest.mark.nightly
def test_tools_of_agent_frameworks_take_effect_once(tmp_path):
    command = [environment(), WORKERS / "agent_frameworks.py", PAGE.relative_to(ROOT), tmp_path]
    env = {"PYTHONPATH": f"{SOURCES}:{SUPPORT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(" ok ") == 8, done.stdout
