"""How the cost of a first call grows with the ledger: 10 thousand, 1 million and 10 million records.

Run: python benchmarks/growth.py [RECORDS…]     (10 million take about 3 GB of disk and some minutes to make)
Goal: flat, within 1.5 times of the smallest.
"""

import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

from measure import Cost, interleaved, places, table, timed
from onceward import Once
from onceward.core.record import Record
from onceward.stores.sqlite.schema import SCHEMA, TABLE
from raw_sqlite import LATER, WORKER

SIZES = [int(n) for n in sys.argv[1:]] or [10_000, 1_000_000, 10_000_000]
CALLS, ROUNDS = 500, 9


def handler() -> int:
    return 1


def rows(count: int) -> Iterator[tuple[object, ...]]:
    """Yield records whose keys are spread evenly and come in order, for making the file is not what is measured."""
    now = time.time()
    step = (1 << 96) // count
    for n in range(count):
        key, owner = f"growth.handler:{n * step + random.randrange(step):024x}", f"{random.getrandbits(128):032x}"
        made = now - random.random() * 1e6
        yield (
            key,
            "COMPLETED",
            owner,
            int(made * 1e6),
            1,
            made,
            1,
            None,
            '{"charged":100}',
            None,
            made,
            now + 1e6 + made % 1e6,
            made,
            WORKER,
            *LATER,
        )


def ledger(path: Path, count: int) -> Once:
    once = Once(f"sqlite:///{path}", name="growth.handler")
    once.run("the schema is made by the first use", handler)
    once.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    connection.execute(f"DROP INDEX {TABLE}_expiry")
    columns, marks = ", ".join(Record._fields), ", ".join("?" * len(Record._fields))
    connection.executemany(f"INSERT INTO {TABLE} ({columns}) VALUES ({marks})", rows(count))
    connection.execute(SCHEMA[1])
    connection.execute("COMMIT")
    connection.close()
    return once


def case_for(once: Once) -> Callable[[int], Cost]:
    def case(turn: int) -> Cost:
        keys = [f"{random.getrandbits(96):024x}" for _ in range(CALLS)]
        del turn
        return timed(lambda: [once.run(key, handler) for key in keys], CALLS)

    return case


def main() -> None:
    folder = places()["disk"]
    cases: dict[str, Callable[[int], Cost]] = {}
    for size in SIZES:
        start = time.perf_counter()
        cases[f"{size:,}"] = case_for(ledger(folder / f"{size}.db", size))
        os.sync()  # what making it has left to be written is not the calls' cost
        print(
            f"  made {size:,} records in {time.perf_counter() - start:.0f} s, {(folder / f'{size}.db').stat().st_size >> 20} MiB"
        )
    costs = interleaved(cases, ROUNDS)
    base = next(iter(costs.values()))
    table(
        f"a first call with a random key: µs, {CALLS} calls, median of {ROUNDS} interleaved rounds",
        ["records", "wall", "CPU", "wall / smallest"],
        [(name, cost.wall, cost.cpu, cost.wall / base.wall) for name, cost in costs.items()],
    )
    rmtree(folder)


if __name__ == "__main__":
    main()
