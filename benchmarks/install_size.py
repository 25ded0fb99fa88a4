"""How large an installation is, and its zip for Lambda: the library alone, and with the command line.

Run: python benchmarks/install_size.py
pip installs this tree into an empty folder, with bytecode, as it does by default. It fetches the dependencies.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import table

ROOT = Path(__file__).parent.parent
CASES = ("onceward", "onceward[cli]")


def sizes(case: str, folder: Path) -> tuple[str, float, float, int]:
    """Return a case's megabytes as installed and as zipped, and how many packages it takes."""
    target = folder / case
    extra = case.removeprefix("onceward")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]
    subprocess.run([*command, "--target", str(target), f"{ROOT}{extra}"], check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)
    files = [path for path in target.rglob("*") if path.is_file()]
    zipped = Path(shutil.make_archive(str(folder / f"{case}-zipped"), "zip", target))
    packages = len(list(target.glob("*.dist-info")))
    return case, sum(path.stat().st_size for path in files) / 1e6, zipped.stat().st_size / 1e6, packages


def main() -> None:
    """Measure each case and print it."""
    with tempfile.TemporaryDirectory(prefix="onceward-size-") as folder:
        rows = [sizes(case, Path(folder)) for case in CASES]
    table("installed by pip, MB", ["", "installed", "zipped", "packages"], rows)


if __name__ == "__main__":
    main()
