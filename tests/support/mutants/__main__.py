"""Plant each defect whose name has one of the words into a copy of the tree, and run the tests that must find it; exit with 1 if one is not found."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants.defects import DEFECTS, Defect
from places import ROOT

_LONGEST = 900  # seconds; a test that hangs has found it
_FAILED = 1  # pytest's exit status if tests failed
_MEMORY = 8 << 30  # bytes; a test that collects without end has found it, too


def main(words: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    chosen = [one for one in DEFECTS if not words or any(word in one.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="onceward-mutants-") as folder:
        tree = Path(folder) / "tree"
        leave = (".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".demo", "node_modules")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*leave))
        missed = [one.name for one in chosen if not _is_found(one, tree)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} planted defects were found")
    for name in missed:
        print(f"not found: {name}")
    return 1 if missed else 0


def _is_found(defect: Defect, tree: Path) -> bool:
    file, began = tree / "src/onceward" / defect.file, time.monotonic()
    whole = file.read_text()
    file.write_text(defect.planted(whole))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb", "no", "-p", "no:cacheprovider"]
    environment = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "ONCEWARD_NIGHTLY": "0"}
    try:
        ran = subprocess.run(
            [*command, *(f"tests/{test}" for test in defect.tests.split())],
            cwd=tree,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
        status, said = ran.returncode, ran.stdout
    except subprocess.TimeoutExpired:
        status, said = _FAILED, "FAILED (hangs)"
    finally:
        file.write_text(whole)
    by = next((line.split(" ")[1] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), said[-300:])
    print(
        f"{'found ' if status == _FAILED else 'MISSED'} {time.monotonic() - began:5.0f} s  {defect.name}: {by}",
        flush=True,
    )
    return status == _FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
