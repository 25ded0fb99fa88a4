"""Messages per second of once.run on SQLite, against the raw durable limit of the same run, and of batches.

Run: python benchmarks/throughput.py [MESSAGES]
The raw limit is one connection, in one thread, that makes the same two durable commits per message (claim, complete) and
nothing else.
Goals: once.run reaches 0.85 of it; a batch of 100 keys is at least 10 times faster than one by one.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from shutil import rmtree

from measure import Cost, interleaved, places, table, timed
from onceward import Once
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.many import end_many
from onceward.core.policy import Policy
from onceward.core.protocol import completed
from onceward.core.record import Write
from onceward.core.writes import first_claim
from onceward.stores.sqlite.store import SqliteStore
from raw_sqlite import RawLedger

MESSAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROUNDS = 7
BATCH = 100


def handler() -> int:
    return 1


def in_threads(first: Callable[[str], object], threads: int) -> Callable[[int], Cost]:
    def case(turn: int) -> Cost:
        pending = iter(range(MESSAGES))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    n = next(pending, None)
                if n is None:
                    return
                first(f"{threads}-{turn}-{n}")

        def everybody() -> None:
            started = [threading.Thread(target=work) for _ in range(threads)]
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()

        return timed(everybody, MESSAGES)

    return case


def claims(prefix: str) -> list[Write]:
    return [
        first_claim(f"{prefix}-{n}", os.urandom(16).hex(), None, Policy(lease=60.0, retention=1e6))
        for n in range(MESSAGES)
    ]


def one_by_one(store: SqliteStore) -> Callable[[int], Cost]:
    def case(turn: int) -> Cost:
        writes = claims(f"one-{turn}")

        def run() -> None:
            for write in writes:
                reply = drive(store.insert(write), store)
                assert reply.record is not None
                ends = [(reply.record, completed("1"), Policy())]
                drive(end_many(store, ends, boottime, lambda: 0.0), store)

        return timed(run, MESSAGES)

    return case


def in_batches(store: SqliteStore) -> Callable[[int], Cost]:
    def case(turn: int) -> Cost:
        writes = claims(f"many-{turn}")

        def run() -> None:
            for at in range(0, MESSAGES, BATCH):
                replies = drive(store.insert_many(writes[at : at + BATCH]), store)
                ends = [(reply.record, completed("1"), Policy()) for reply in replies if reply.record is not None]
                drive(end_many(store, ends, boottime, lambda: 0.0), store)

        return timed(run, MESSAGES)

    return case


def main() -> None:
    for place, folder in places().items():
        if place != "disk":
            rmtree(folder)
            continue
        raw = RawLedger(folder / "raw.db")
        once = Once(f"sqlite:///{folder}/once.db")
        store = SqliteStore(folder / "batch.db")

        def run(key: str, once: Once = once) -> None:
            once.run(key, handler)

        cases = {"raw limit": in_threads(raw.first, 1)}
        cases |= {f"once.run, {n} thread(s)": in_threads(run, n) for n in (1, 2, 8, 32)}
        cases |= {"store, one by one": one_by_one(store), f"store, batches of {BATCH}": in_batches(store)}
        start = time.perf_counter()
        costs = interleaved(cases, ROUNDS)
        base = costs["raw limit"].wall
        rows = [(name, round(1e6 / cost.wall), base / cost.wall, cost.cpu) for name, cost in costs.items()]
        table(
            f"ledger on {place}: {MESSAGES} messages a round, median of {ROUNDS} interleaved rounds "
            f"({time.perf_counter() - start:.0f} s)",
            ["", "messages/s", "of the raw limit", "CPU µs each"],
            rows,
        )
        ratio = costs["store, one by one"].wall / costs[f"store, batches of {BATCH}"].wall
        print(f"\n  a batch of {BATCH} is {ratio:.1f} times faster than one by one")
        rmtree(folder)


if __name__ == "__main__":
    main()
