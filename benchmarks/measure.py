"""What the benchmarks share: interleaved rounds, medians, and a table.

Every figure is the median of rounds that take turns, so that a machine whose speed drifts slows all of them alike.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Microseconds per call."""

    cpu: float
    wall: float


def timed(run: Callable[[], object], calls: int) -> Cost:
    """Time one round of ``calls`` calls made by ``run()``."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(cpu / calls * 1e6, wall / calls * 1e6)


def interleaved(cases: dict[str, Callable[[int], Cost]], rounds: int) -> dict[str, Cost]:
    """Run every case once per round, a warm-up round first, and return each one's medians."""
    seen: dict[str, list[Cost]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            cost = case(turn)
            if turn:
                seen[name].append(cost)
    return {
        name: Cost(statistics.median(c.cpu for c in costs), statistics.median(c.wall for c in costs))
        for name, costs in seen.items()
    }


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title, columns aligned."""
    cells = [list(head), *([f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    print(f"\n{title}")
    for n, row in enumerate(cells):
        line = "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        print("  " + line)
        if n == 0:
            print("  " + "-" * (sum(widths) + 2 * (len(widths) - 1)))


def places() -> dict[str, Path]:
    """Return where the ledgers of a benchmark may be: on the disk, and where a sync costs nothing if there is such."""
    found = {"disk": Path(tempfile.mkdtemp(prefix="onceward-bench-"))}
    if Path("/dev/shm").is_dir():
        found["memory"] = Path(tempfile.mkdtemp(prefix="onceward-bench-", dir="/dev/shm"))
    return found
