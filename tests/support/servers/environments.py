"""Environments of Python for libraries that do not fit beside our pins, and servers in Java. pip and Maven fetch each once."""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from places import ROOT, SOURCES, SUPPORT, WORKERS
from servers.needs import CACHE, brought, fetched, missing, needs

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>onceward</groupId><artifactId>for-tests</artifactId><version>1</version><dependencies>
{}</dependencies></project>"""
OURS = ["msgspec==0.22.0", "jmespath==1.1.0"]


def environment(name: str, needs: list[str]) -> Path:
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


def from_maven(name: str, *artifacts: str) -> Path:
    """Return a folder with artifacts, ``GROUP:NAME:VERSION``, and what they need, fetched once. Maven checks their digests."""

    def fetch(work: Path) -> Path:
        (work / "pom.xml").write_text(POM.format("".join(map(_dependency, artifacts))))
        maven = needs("mvn", "apt-get install maven")
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
        brought([maven, "-q", "-B", "-C", COPY, *options], work)
        return work / "jars"

    return fetched(name, fetch)


def _dependency(artifact: str) -> str:
    group, name, version = artifact.split(":")
    return f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"


def run_page(python: Path, script: str, page: Path, folder: Path, *more: str, status: int = 0) -> str:
    """Run a worker script that runs a page, check how it ends, and return what it prints."""
    command = [python, WORKERS / script, page.relative_to(ROOT), folder, *more]
    env = {"PYTHONPATH": f"{SOURCES}:{SUPPORT}", "PATH": "/usr/bin:/bin", "HOME": str(folder), "DO_NOT_TRACK": "1"}
    env["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "120"  # on a busy machine
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, env=env, timeout=1200)
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout
