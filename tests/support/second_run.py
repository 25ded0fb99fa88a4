"""Run what has failed once more, alone: ``make test`` calls it after a run with failures.

The whole run keeps a small machine so busy that a reply can take seconds. A test that passes now, and failed beside others, told of the
machine and not of onceward. Its name is printed, so that somebody makes it wait for a condition instead. Random faults get no
second run: what they have found once is found.
"""

import json
import subprocess
import sys
from pathlib import Path

from places import ROOT

MOST = 10  # failures; more of them tell of the code
RANDOM = ("torture", "campaign", "fuzz")
FAILED = 1  # pytest's exit status if tests failed; others say that it did not run them all


def main(status: int, root: Path = ROOT) -> int:
    """Return the exit status of ``make test``: 0 if all that failed passes alone."""
    noted = root / ".pytest_cache" / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(noted.read_text())) if noted.exists() else []
    if status != FAILED or not 0 < len(failed) <= MOST or any(word in name for word in RANDOM for name in failed):
        return status
    print("\nThese failed, and run again, alone. Fix also those that pass now:", *failed, sep="\n    ", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *failed], cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
