"""The zip of docs/how-to/deploy.md: its size, and a cold start from it, with and without bytecode.

Run: python benchmarks/lambda_zip.py
pip fetches the dependencies. A cold start is a fresh interpreter that has nothing but the unzipped files and may write none, from
its first import to the entry of the first handler, on a ledger in memory. AWS's own start of the process is not in it.
"""

import compileall
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

from measure import table

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
ROUNDS = 15
ROOT = Path(__file__).parents[1]
CASES = ("sources only", "compiled")
LEFT_OUT = ("bin", "onceward/cli", "onceward/dashboard", "onceward/testing")
APP = """
from onceward import Once
from onceward.aws import on_sqs

once = Once("memory:")

@once(key="order.id")
def charge(order: dict) -> dict:
    return {"entered": time.perf_counter()}
"""
START = """
import sys, time
began = time.perf_counter()
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import app
print((app.charge({"id": 1})["entered"] - began) * 1e3)
"""


def started(folder: Path) -> float:
    """Return the milliseconds of one cold start."""
    command = [sys.executable, "-I", "-S", "-c", START, str(folder)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Make each zip, start from it in turns, and print both."""
    with tempfile.TemporaryDirectory(prefix="onceward-zip-") as name:
        folder = Path(name)
        (folder / "app.py").write_text("import time\n" + APP)
        sizes, times = {}, {case: [] for case in CASES}
        for case in CASES:
            place, made = folder / case, folder / f"{case}.zip"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(place), str(ROOT)]
            subprocess.run(pip, check=True)
            for one in LEFT_OUT:
                shutil.rmtree(place / one, ignore_errors=True)
            shutil.copy(folder / "app.py", place)
            if case == "compiled":
                compileall.compile_dir(place, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
            subprocess.run([sys.executable, "-m", "zipfile", "-c", str(made), f"{place}/."], check=True)
            with zipfile.ZipFile(made) as archive:
                entries = archive.infolist()
                ours = sum(entry.compress_size for entry in entries if entry.filename.startswith("onceward"))
                sizes[case] = (made.stat().st_size / 1e6, ours / 1e6, sum(entry.file_size for entry in entries) / 1e6)
        for turn in range(ROUNDS + 1):
            for case, seen in times.items():
                took = started(folder / case)
                if turn:
                    seen.append(took)
    rows = [(case, *sizes[case], statistics.median(times[case])) for case in CASES]
    table(f"on Python {HERE}", ["", "zip, MB", "of it onceward", "unzipped, MB", "cold start, ms"], rows)


if __name__ == "__main__":
    main()
