"""Build the wheel and the sdist from what is committed, and check them. `make dist` runs this; a release uploads the result.

Two clones, at different paths and times and for different users, must give the same bytes. So must the sdist, when the wheel is built from it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LARGEST = 1_500_000  # bytes of the wheel


def run(*command: str | Path, cwd: Path, umask: int = 0o022, **environment: str) -> None:
    """Run a command, and show what it wrote only if it fails."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        umask=umask,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}dist: that failed with status {done.returncode}")


def clone(to: Path, epoch: str, umask: int) -> tuple[Path, Path]:
    """Clone the commit that is checked out, and return the wheel and the sdist that are built there."""
    run("git", "clone", "--quiet", "--local", ROOT, to, cwd=ROOT, umask=umask)
    run(BIN / "hatchling", "build", cwd=to, umask=umask, SOURCE_DATE_EPOCH=epoch)
    return next((to / "dist").glob("*.whl")), next((to / "dist").glob("*.tar.gz"))


def refuse_difference(first: Path, second: Path) -> None:
    """End with a message if two files are not the same, byte for byte."""
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)]
    if sums[0] != sums[1]:
        sys.exit(f"dist: {first} and {second} differ: SHA-256 {sums[0]} and {sums[1]}")


def check_types(wheel: Path, folder: Path) -> None:
    """Check tests/typing_api.py with mypy and pyright, outside this tree, against the wheel as it is installed."""
    builder = venv.EnvBuilder(symlinks=True)
    builder.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    zipfile.ZipFile(wheel).extractall(installed)
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # after the wheel
    shutil.copy(ROOT / "tests" / "typing_api.py", folder)
    mypy = ("--strict", "--config-file", "", "--cache-dir", folder / "cache", "--python-executable", python)
    run(BIN / "mypy", *mypy, "typing_api.py", cwd=folder)
    run(BIN / "pyright", "--pythonpath", python, "typing_api.py", cwd=folder)


def main() -> None:
    """Build, check, and leave the two files in dist/."""
    commit = ("git", "log", "-1", "--format=%ct")
    epoch = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="onceward-dist-") as name:
        folder = Path(name)
        wheel, sdist = clone(folder / "one", epoch, 0o022)
        again = clone(folder / "another place", epoch, 0o077)
        refuse_difference(wheel, again[0])
        refuse_difference(sdist, again[1])
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (source,) = (folder / "unpacked").iterdir()
        run(BIN / "hatchling", "build", "-t", "wheel", cwd=source, SOURCE_DATE_EPOCH=epoch)
        refuse_difference(wheel, source / "dist" / wheel.name)
        run(BIN / "twine", "check", "--strict", wheel, sdist, cwd=folder)
        # Django numbers its migrations, so their names are no identifiers: W004.
        run(BIN / "check-wheel-contents", "--ignore", "W004", wheel, cwd=folder)
        if wheel.stat().st_size > LARGEST:
            sys.exit(f"dist: {wheel.name} has {wheel.stat().st_size} bytes, more than {LARGEST}")
        check_types(wheel, folder)
        (ROOT / "dist").mkdir(exist_ok=True)
        for built in (wheel, sdist):
            shutil.copy(built, ROOT / "dist")
            print(f"dist/{built.name}  {built.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
