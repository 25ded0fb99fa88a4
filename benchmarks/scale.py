"""What docs/explanation/scale.md calculates with: messages a second, and what one message costs a PostgreSQL server.

Run: python benchmarks/scale.py [MESSAGES]

The server is Debian's PostgreSQL 15 with its own settings, fsync on, on a temporary folder of the disk, and shares the machine with
its clients. It is started and stopped here. Each figure is of one run: read it as an order of magnitude.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from measure import table
from onceward import Once
from servers.postgres import Postgres

MESSAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
BATCH = 100
RESULT = "x" * 98
_LOG = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8"
_ROWS = "SELECT n_tup_upd::float8, n_tup_hot_upd::float8 FROM pg_stat_all_tables WHERE relname = 'onceward'"
_COMMITS = "SELECT sum(xact_commit)::float8 FROM pg_stat_database"


def one_by_one(once: Once, keys: Sequence[str]) -> None:
    for key in keys:
        once.run(key, lambda: RESULT)


def in_batches(once: Once, keys: Sequence[str]) -> None:
    batch = once.batch(lambda _: RESULT, key=lambda key: key)
    for start in range(0, len(keys), BATCH):
        batch.run(keys[start : start + BATCH])


WAYS: dict[str, tuple[Callable[[Once, Sequence[str]], None], int]] = {
    "one by one, 1 thread": (one_by_one, 1),
    "one by one, 16 threads": (one_by_one, 16),
    f"batches of {BATCH}, 1 thread": (in_batches, 1),
    f"batches of {BATCH}, 4 threads": (in_batches, 4),
}


def rate(once: Once, name: str) -> float:
    """Return the messages a second of one way."""
    run, threads = WAYS[name]
    keys = [f"{name}/{number}" for number in range(MESSAGES)]
    run(once, keys[:BATCH])
    shares = [keys[number + BATCH :: threads] for number in range(threads)]
    workers = [threading.Thread(target=run, args=(once, share)) for share in shares]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (MESSAGES - BATCH) / (time.perf_counter() - began)


@contextmanager
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        yield server
    finally:
        server.stop()


def counted(server: Postgres) -> tuple[float, ...]:
    """Return the server's counters of its log, its updates, those that touch no index, and its commits."""
    time.sleep(1.2)  # a session tells its counts once a second
    ((log,),) = server.sql(_LOG)
    rows = server.sql(_ROWS, database="test") or [(0.0, 0.0)]
    ((commits,),) = server.sql(_COMMITS)
    return log, *rows[0], commits


def on_postgres() -> None:
    rows = []
    with postgres() as server:
        for name in WAYS:
            once = Once(server.url, name="shop.charge")
            once.run("warm-up", lambda: RESULT)
            before = counted(server)
            speed = rate(once, name)
            once.close()
            log, updates, cheap, commits = (b - a for a, b in zip(before, counted(server), strict=True))
            rows.append(
                (
                    name,
                    round(speed),
                    f"{commits / MESSAGES:.2f}",
                    round(log / MESSAGES),
                    f"{updates / MESSAGES:.2f}",
                    f"{cheap / max(1, updates):.0%}",
                )
            )
    head = ["", "messages/s", "commits", "bytes of log", "dead rows", "of them in their page"]
    table(f"PostgreSQL: {MESSAGES} messages with results of 100 bytes; commits, log and dead rows of one", head, rows)


def on_sqlite() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(WAYS):
            once = Once(f"sqlite:///{folder}/{number}.db", name="shop.charge")
            rows.append((name, round(rate(once, name))))
            once.close()
    table(f"SQLite, synchronous=FULL: {MESSAGES} messages", ["", "messages/s"], rows)


if __name__ == "__main__":
    on_postgres()
    on_sqlite()
    print(f"\n{os.cpu_count()} cores, with a load of {os.getloadavg()[0]:.1f} at the end")
