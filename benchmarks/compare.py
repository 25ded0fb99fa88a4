"""Is this tree slower than an earlier commit? Both run the same work in turns, and each pair of rounds gives a ratio.

Run: python benchmarks/compare.py REV [STARTS]
The cases are those that README quotes. It prints, for each of them, the CPU of one call in both trees, and the ratio (this tree over REV) with its 95 % interval.
Both trees are started anew STARTS times, because memory layout alone makes one process up to a tenth slower than another of
the same code. Each start gives one ratio, the median of its rounds; the interval is that of the median of these (bootstrap).
Both processes share one core. Imports and cold starts are timed on the wall, in fresh processes. The ledgers are in memory;
DynamoDB is a local server that npm fetches once (Linux on x86-64).
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from measure import table

ROOT = Path(__file__).parent.parent
FRESH = {
    "import onceward": "import onceward",
    "cold start: import to the first call in memory": (
        "import onceward\nonce = onceward.Once('memory:')\n@once(key='x', name='f')\ndef f(x: int) -> int: return x\nf(1)"
    ),
}
ON_DYNAMODB = """
import asyncio, os, time
from onceward import Once
once = Once(os.environ["ONCEWARD_STORE"])
"""
FRESH_ON_DYNAMODB = {
    "cold start: to the first claim in DynamoDB": (
        f"{ON_DYNAMODB}\n@once(key='x', name='f')\ndef f(x: int) -> int: os._exit(0)\nf(time.time_ns())"
    ),
    "cold start: to the first claim in DynamoDB, awaited": (
        f"{ON_DYNAMODB}\n@once(key='x', name='f')\nasync def f(x: int) -> int: os._exit(0)\nasyncio.run(f(time.time_ns()))"
    ),
}
SAMPLES = 2000  # of the bootstrap
ROUNDS = 5  # of each start, after one that warms up
Pair = tuple[float, float]  # the figures of the old tree and of the new one


class Tree(NamedTuple):
    """One of the two: how it is called, and the folder of its package."""

    name: str
    source: Path

    def environment(self) -> dict[str, str]:
        """Return the variables of its processes."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        aws = {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}
        return {**kept, **aws, "PYTHONPATH": str(self.source)}


class Worker:
    """A process that runs the cases of one tree."""

    def __init__(self, tree: Tree, server: str | None, prefix: str) -> None:
        environment = tree.environment() | ({"ONCEWARD_BENCH_DYNAMODB": server} if server else {})
        command = [sys.executable, str(Path(__file__).parent / "compare_cases.py"), tree.name, prefix]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cases: list[str] = json.loads(self._line())

    def run(self, case: str, turn: int) -> float:
        """Return the CPU microseconds of one call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([case, turn]) + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a case failed; its traceback stands above")
        return line


def fresh(tree: Tree, code: str, server: str | None) -> float:
    """Return the milliseconds of a process that runs ``code``."""
    url = f"dynamodb://{tree.name}?region=eu-west-1&endpoint={quote(server)}" if server else ""
    environment = tree.environment() | {"ONCEWARD_STORE": url}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return (time.perf_counter() - began) * 1e3


def pairs(measure: Callable[[int, int], float], rounds: int) -> list[Pair]:
    """Return the figures of both trees; ``measure(which, turn)``. Who goes first changes with each round."""
    seen = []
    for turn in range(rounds + 1):
        figures = {which: measure(which, turn) for which in ((0, 1) if turn % 2 else (1, 0))}
        if turn:  # the first one warms up
            seen.append((figures[0], figures[1]))
    return seen


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of ``ratios``."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(SAMPLES))
    return medians[SAMPLES // 40], medians[-SAMPLES // 40]


def row(name: str, starts: list[list[Pair]]) -> tuple[object, ...]:
    old, new = (statistics.median(pair[which] for pairs in starts for pair in pairs) for which in (0, 1))
    ratios = [statistics.median(b / a for a, b in pairs) for pairs in starts]
    low, high = interval(ratios)
    verdict = "slower" if low > 1.05 else "faster" if high < 0.95 else ""
    return (name, old, new, statistics.median(ratios), f"{low:.2f} to {high:.2f}", verdict)


def checked_out(revision: str, folder: str) -> Path:
    made = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(made)) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / "src"


def dynamodb(stack: ExitStack) -> str | None:
    """Start the server, with a table for each tree; None where it cannot be had."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import pytest

    from servers.dynoxide import Dynoxide

    try:
        server = Dynoxide()
    except pytest.skip.Exception as why:  # what the tests do where the server cannot be had
        print(f"without DynamoDB: {why}")
        return None
    stack.callback(server.stop)
    for name in ("old", "new"):
        server.table(name, {"key": "S"})
    return server.url


def main() -> None:
    if len(sys.argv) not in {2, 3}:
        sys.exit("usage: python benchmarks/compare.py REV [STARTS]")
    revision, starts = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 15
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-bench-"))
        trees = (Tree("old", checked_out(revision, folder)), Tree("new", ROOT / "src"))
        server = dynamodb(stack)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(
                0, {max(os.sched_getaffinity(0))}
            )  # after the server, and for all that is started below
        seen: dict[str, list[list[Pair]]] = {}
        for start in range(starts):
            for name, figures in one_start(trees, server, start).items():
                seen.setdefault(name, []).append(figures)
        head = ["", revision[:12], "this tree", "ratio", "95 % interval", ""]
        title = f"this tree beside {revision}, medians of {starts} starts with {ROUNDS} interleaved rounds"
        table(title, head, [row(name, figures) for name, figures in seen.items()])


def one_start(trees: tuple[Tree, Tree], server: str | None, start: int) -> dict[str, list[Pair]]:
    """Return the figures of all cases from one pair of fresh processes."""
    programs = FRESH | (FRESH_ON_DYNAMODB if server else {})
    seen = {
        f"{name}, ms": pairs(lambda which, _, code=code: fresh(trees[which], code, server), ROUNDS)
        for name, code in programs.items()
    }
    workers = [Worker(tree, server, f"{tree.name}{start}") for tree in trees]
    for name in workers[0].cases:
        seen[f"{name}, µs"] = pairs(lambda which, turn, name=name: workers[which].run(name, turn), ROUNDS)
    for worker in workers:
        worker.stop()
    return seen


if __name__ == "__main__":
    main()
