"""onceward on MariaDB beside PyMySQL and asyncmy with the same statements: CPU, time, and what a duplicate writes.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/stores_mysql.py

The server is Debian's MariaDB 10.11 with a commit on the disk before it is answered, in a temporary folder (TMPDIR moves it). It is
started and stopped here. The raw drivers send what onceward was seen to send, as a careful user does (mysql_replay.py). All lines of
a table take turns.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import asyncmy
import pymysql

from measure import Cost, interleaved, table, timed
from mysql_replay import CASES, MARK, Tape, keys_of, recorded, steps
from onceward import Once
from servers.mysql import Mariadb

CALLS, BATCH, ROUNDS = 50, 100, 5
OVER = 30  # the goal: µs of CPU over the raw driver


def handler(order: str) -> dict[str, str]:
    """What a call does."""
    return {"charged": order}


class Ours:
    """onceward, blocking or awaited."""

    def __init__(self, url: str, runner: asyncio.Runner | None = None) -> None:
        self._once, self._runner = Once(f"{url}?timeout=30", name="bench"), runner
        of_one = handler if runner is None else handler_async
        self._batch = self._once.batch(of_one, key=lambda key: key, name="bench")

    def run(self, case: str, start: str) -> None:
        """Make the calls of a turn."""
        keys = keys_of(start, BATCH)[1:] if "batch" in case else keys_of(start, CALLS)[1:]
        if "batch" in case and self._runner is not None:
            self._runner.run(self._batch.run_async(keys))
        elif "batch" in case:
            self._batch.run(keys)
        elif self._runner is not None:
            self._runner.run(self._calls(keys))
        else:
            for key in keys:
                self._once.run(key, handler, key)

    async def _calls(self, keys: list[str]) -> None:
        for key in keys:
            await self._once.run_async(key, handler_async, key)

    def close(self) -> None:
        """Close it."""
        self._once.close()


async def handler_async(order: str) -> dict[str, str]:
    """As :func:`handler`."""
    return handler(order)


handler_async.__qualname__ = handler.__qualname__  # the same keys


class Raw:
    """PyMySQL with the same statements."""

    def __init__(self, url: str, tape: Tape) -> None:
        self._tape = tape
        self._connection = pymysql.connect(**place(url), autocommit=True)

    def run(self, case: str, start: str) -> None:
        """Send them."""
        asking, rows = steps(self._tape, case, start, CALLS), None
        with contextlib.suppress(StopIteration):
            while True:
                text, values = asking.send(rows)
                with self._connection.cursor() as cursor:
                    cursor.execute(text, values)
                    rows = cursor.fetchall()

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class RawAwaited:
    """asyncmy with the same statements."""

    def __init__(self, url: str, tape: Tape, runner: asyncio.Runner) -> None:
        self._tape, self._runner = tape, runner
        self._connection = runner.run(_opened(url))

    def run(self, case: str, start: str) -> None:
        """Send them."""
        self._runner.run(self._sent(case, start))

    async def _sent(self, case: str, start: str) -> None:
        asking, rows = steps(self._tape, case, start, CALLS), None
        with contextlib.suppress(StopIteration):
            while True:
                text, values = asking.send(rows)
                async with self._connection.cursor() as cursor:
                    await cursor.execute(text, values)
                    rows = await cursor.fetchall()

    def close(self) -> None:
        """Close it."""
        self._runner.run(self._connection.ensure_closed())


async def _opened(url: str) -> object:
    return await asyncmy.connect(**place(url), autocommit=True)


def place(url: str) -> dict[str, object]:
    """Return where a URL leads."""
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}


def main() -> None:
    """Print the tables."""
    begun = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = Mariadb(innodb_flush_log_at_trx_commit=1, innodb_doublewrite="ON")
    try:
        ((told,),) = server.sql("SELECT VERSION()")
        print(
            f"MariaDB {told}, Python {sys.version.split()[0]}, PyMySQL {version('pymysql')}, asyncmy {version('asyncmy')}"
        )
        url = server.database("bench")
        tape = recorded(url, handler, BATCH)
        with asyncio.Runner() as runner:
            peers = {
                "PyMySQL": Raw(url, tape),
                "onceward": Ours(url),
                "asyncmy": RawAwaited(url, tape, runner),
                "onceward, async": Ours(url, runner),
            }
            measured: dict[str, Callable[[int], Cost]] = {}
            for case in CASES:
                for number, (name, peer) in enumerate(peers.items()):
                    measured[f"{case}, {name}"] = _case(case, number, peer)
            costs = interleaved(measured, ROUNDS)
            for peer in peers.values():
                peer.close()
        for case in CASES:
            _print(case, tape, {name: costs[f"{case}, {name}"] for name in peers})
        _print_writes(server, url)
    finally:
        server.stop()
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - begun:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


def _case(case: str, number: int, peer: Ours) -> Callable[[int], Cost]:
    kind = "b" if "batch" in case else "s"
    count = BATCH if kind == "b" else CALLS
    return lambda turn: timed(lambda: peer.run(case, f"{kind}{number:02}{turn:05}".ljust(len(MARK), "x")), count)


def _print(case: str, tape: Tape, costs: dict[str, Cost]) -> None:
    rows = []
    for ours, raw in (("onceward", "PyMySQL"), ("onceward, async", "asyncmy")):
        over = costs[ours].cpu - costs[raw].cpu
        rows.append((raw, "", round(costs[raw].cpu), "", round(costs[raw].wall), "", ""))
        trips = len(tape[case]) / (BATCH if "batch" in case else 1)
        met = "yes" if over <= OVER else "NO"
        rows.append((ours, trips, round(costs[ours].cpu), round(over), round(costs[ours].wall), f"<= {OVER}", met))
    table(
        f"{case}: µs for each, median of {ROUNDS}", ["", "round trips", "CPU", "over raw", "wall", "goal", "met"], rows
    )


def _print_writes(server: Mariadb, url: str) -> None:
    once = Once(url, name="bench")
    once.run("again", handler, "again")

    def log() -> int:
        return int(server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")[0][1])

    least = min(_grown(log, lambda: [once.run("again", handler, "again") for _ in range(100)]) for _ in range(5))
    print(f"\n100 duplicates write {least} bytes to the log (goal: 0)")
    once.close()


def _grown(read: Callable[[], int], act: Callable[[], object]) -> int:
    before = read()
    act()
    return read() - before


if __name__ == "__main__":
    main()
