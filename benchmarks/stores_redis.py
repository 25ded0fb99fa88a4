"""onceward on Redis beside idemkit, Powertools, what a careful user writes, and redis-py with onceward's own commands.

Run: pip install . -r benchmarks/requirements.txt; python benchmarks/stores_redis.py [PART ...]
Parts: cases, messages, writes, memory; all of them take about two minutes.

The server is Debian's Redis 7.0 without a file. It is started and stopped here. Round trips come from delay_proxy.py, in a process of
its own. All lines of a table take turns in one run, on one server. The goals stand in the tables.
"""

import argparse
import asyncio
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from idemkit import RedisBackend, idempotent

from delay_proxy import DelayProxy
from measure import Cost, interleaved, table, timed
from onceward import Once
from postgres_replay import CASES, Order, handle, orders
from servers.redis import Redis
from stores_cases import BATCH, CALLS, OVER, ROUNDS, TITLES, some
from stores_peers import IDEMKIT, Peer, handle_async
from stores_redis_peers import (
    ASYNC,
    ONCEWARD,
    POWERTOOLS,
    THEIRS,
    UNDER,
    Tape,
    careful_call,
    on_redis,
    powertools_call,
    recorded,
)

PARTS = ("cases", "messages", "writes", "memory")
RECORDS = 20_000
MESSAGES, THREADS, TIMES, TIMES_IN_BATCHES = 2000, 8, 2.0, 4.0
TIMES_IN_TASKS = {64: 2.0, 256: 2.5}  # idemkit's with as many tasks
IN_BATCHES, FEW = f"onceward, batches of {BATCH}", min(TIMES_IN_TASKS)
THEIR_THREADS = f"Powertools, {THREADS} threads"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", default=PARTS, help=", ".join(PARTS))
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    begun = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        server = Redis()
        stack.callback(server.stop)
        with server.client() as client:
            told = client.info("server")["redis_version"]
        packages = ("redis", "idemkit", "aws_lambda_powertools")
        print(f"Redis {told}, Python {sys.version.split()[0]},", ", ".join(f"{n} {version(n)}" for n in packages))
        tape = recorded(server.url, BATCH)
        if "cases" in asked.parts:
            proxy = DelayProxy(server.port, 0.0, "turns")
            stack.callback(proxy.stop)
            cases(server.port, proxy, tape)
        if "messages" in asked.parts:
            messages(server)
        if "writes" in asked.parts:
            writes(server, tape)
    if "memory" in asked.parts:
        memory()
    load = os.getloadavg()[0]
    print(f"\n{time.perf_counter() - begun:.0f} s, on {os.cpu_count()} cores with a load of {load:.1f} at the end")


def cases(port: int, proxy: DelayProxy, tape: Tape) -> None:
    """Print a table for each case."""
    with asyncio.Runner() as runner:
        through = on_redis(proxy.port, tape, runner)
        trips = {name: _counted(peer, number, proxy) for number, (name, peer) in enumerate(through.items())}
        _close(through)
        peers = on_redis(port, tape, runner)
        gc.collect()
        gc.freeze()  # what one library has loaded is not to cost the collections of another one's calls
        measured: dict[str, Callable[[int], Cost]] = {}
        for case in CASES:
            for number, (name, peer) in enumerate(peers.items()):
                measured[f"{case}, {name}"] = _case(case, number, peer)
        costs = interleaved(measured, ROUNDS)
        _close(peers)
    for case in CASES:
        _print(case, {name: trips[name][case] for name in peers}, {name: costs[f"{case}, {name}"] for name in peers})


def _counted(peer: Peer, number: int, proxy: DelayProxy) -> dict[str, float]:
    """Return the round trips of a call in each case, without connections that are made, and the purge after 1,000 claims."""
    seen = dict.fromkeys(CASES, math.inf)
    for turn in (90_000, 90_001):
        for case in CASES:
            mine = some(case, number, turn)
            proxy.tally()
            peer.run(case, mine)
            seen[case] = min(seen[case], proxy.tally().requests / len(mine))
    return seen


def _case(case: str, number: int, peer: Peer) -> Callable[[int], Cost]:
    def run(turn: int) -> Cost:
        mine = some(case, number, turn)
        return timed(lambda: peer.run(case, mine), len(mine))

    return run


def _close(peers: dict[str, Peer]) -> None:
    for peer in peers.values():
        peer.close()


def _print(case: str, trips: dict[str, float], costs: dict[str, Cost]) -> None:
    least = min(trips[name] for name in THEIRS)
    rows = []
    for name, cost in costs.items():
        over = cost.cpu - costs[UNDER[name]].cpu if name in UNDER else None
        goal = ("", "")
        if name in {ONCEWARD, ASYNC}:
            met = (over is not None and over <= OVER, trips[name] <= least)
            goal = (f"<= {OVER}; <= {least:.2f}", ", ".join("yes" if one else "NO" for one in met))
        rows.append((name, trips[name], round(cost.cpu), "" if over is None else round(over), round(cost.wall), *goal))
    table(
        f"{TITLES[case]}: µs, {BATCH if 'batch' in case else CALLS} one after the other, median of {ROUNDS} interleaved rounds",
        ["", "round trips", "CPU", "CPU over raw", "wall", "goal: over raw; round trips", "met"],
        rows,
    )


# --- many at once -----------------------------------------------------------------------------------------------------------


def messages(server: Redis) -> None:
    """Print the time of new messages, and of the same ones once more."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(THREADS) as threads:
        once = Once(server.url, name="stores.handle")
        backend = RedisBackend.from_url(f"{server.url}?max_connections={max(TIMES_IN_TASKS)}")
        batches = once.batch(handle_async, key="order.id")

        async def in_batches(mine: list[Order]) -> None:
            for at in range(0, len(mine), BATCH):
                await batches.run_async(mine[at : at + BATCH])

        def of_tasks(
            library: str, call: Callable[[Order], Awaitable[object]]
        ) -> dict[str, Callable[[list[Order]], None]]:
            return {
                f"{library}, {tasks} tasks": lambda mine, tasks=tasks: runner.run(_in_tasks(call, mine, tasks))
                for tasks in TIMES_IN_TASKS
            }

        def of_threads(call: Callable[[Order], object]) -> Callable[[list[Order]], None]:
            return lambda mine: list(threads.map(lambda share: [call(one) for one in share], _shares(mine))) and None

        ways = {
            f"onceward, {THREADS} threads": of_threads(once(key="order.id")(handle)),
            **of_tasks("onceward", once(key="order.id")(handle_async)),
            IN_BATCHES: lambda mine: runner.run(in_batches(mine)),
            THEIR_THREADS: of_threads(powertools_call(server.port)),
            **of_tasks("idemkit", idempotent(backend=backend, config=IDEMKIT)(handle_async)),
            f"SET NX GET and a script, {THREADS} threads": of_threads(careful_call(server.port)),
        }
        measured: dict[str, Callable[[int], Cost]] = {}
        for case in ("new", "again"):
            for number, (name, way) in enumerate(ways.items()):
                measured[f"{case}, {name}"] = _way(way, number)
        costs = interleaved(measured, ROUNDS)
        runner.run(backend.aclose())
    rows = []
    for name in ways:
        new, again = costs[f"new, {name}"], costs[f"again, {name}"]
        tasks = next((tasks for tasks in TIMES_IN_TASKS if f", {tasks} tasks" in name), None)
        their_tasks = f"idemkit, {tasks or FEW} tasks"
        times = [costs[f"new, {theirs}"].wall / new.wall for theirs in (their_tasks, THEIR_THREADS)]
        goal = ("", "")
        if name.startswith("onceward"):
            least = TIMES_IN_BATCHES if name == IN_BATCHES else TIMES_IN_TASKS.get(tasks, TIMES)
            # Tasks beside as many tasks, and threads beside threads: Powertools has no coroutines.
            alike = times if name == IN_BATCHES else times[1:] if tasks is None else times[:1]
            goal = (f">= {least:g}", ", ".join("yes" if one >= least else "NO" for one in alike))
        rows.append((name, round(1e6 / new.wall), round(new.cpu), *times, round(1e6 / again.wall), *goal))
    table(
        f"{MESSAGES} messages at once, median of {ROUNDS} interleaved rounds",
        ["", "new a second", "CPU, µs", "times idemkit", "times Powertools", "again a second", "goal for new", "met"],
        rows,
    )


def _way(way: Callable[[list[Order]], None], number: int) -> Callable[[int], Cost]:
    def run(turn: int) -> Cost:
        mine = orders(f"M{number:02}{turn:05}", MESSAGES)
        return timed(lambda: way(mine), MESSAGES)

    return run


def _shares(mine: list[Order]) -> list[list[Order]]:
    return [mine[at::THREADS] for at in range(THREADS)]


async def _in_tasks(call: Callable[[Order], Awaitable[object]], mine: list[Order], tasks: int) -> None:
    pending = iter(mine)

    async def work() -> None:
        for order in pending:
            await call(order)

    await asyncio.gather(*(work() for _ in range(tasks)))


# --- what duplicates write --------------------------------------------------------------------------------------------------


def writes(server: Redis, tape: Tape) -> None:
    """Print the changes that Redis counts."""

    def changes() -> int:
        with server.client() as client:
            return client.info("persistence")["rdb_changes_since_last_save"]

    with asyncio.Runner() as runner:
        peers = on_redis(server.port, tape, runner)
        rows = []
        for number, name in enumerate((ONCEWARD, ASYNC, POWERTOOLS, *THEIRS[:2], THEIRS[3])):
            seen = []
            for case in ("first call", "duplicate", "batch", "batch again"):
                mine, before = some(case, number, 91_000), changes()
                peers[name].run(case, mine)
                seen.append((changes() - before) / len(mine))
            met = ("none", "yes" if seen[1] == seen[3] == 0 else "NO") if name in {ONCEWARD, ASYNC} else ("", "")
            rows.append((name, *seen, *met))
        _close(peers)
    table(
        "Changes that Redis counts for each call",
        ["", "first call", "duplicate", "in a batch", "again", "goal for duplicates", "met"],
        rows,
    )


# --- what a record takes ----------------------------------------------------------------------------------------------------


def memory() -> None:
    """Print the bytes of a completed record, with the default form of hashes and with one for longer fields."""
    rows = []
    for length, settings in ((10, {}), (100, {}), (100, {"hash_max_listpack_value": 1024})):
        server = Redis(**settings)
        try:
            batches = Once(server.url, name="m").batch(_result_of(length), key="order.id")
            before = _used(server)
            for at in range(0, RECORDS, 500):
                batches.run([{"id": f"{number:038}"} for number in range(at, at + 500)])
            rows.append(
                (length, settings.get("hash_max_listpack_value", 64), round((_used(server) - before) / RECORDS))
            )
        finally:
            server.stop()
    table(
        f"Bytes of a record with a key of 40 bytes, of {RECORDS} records",
        ["result", "longest field of a listpack", "bytes"],
        rows,
    )


def _result_of(length: int) -> Callable[[Order], str]:
    def give(order: Order) -> str:
        return "x" * (length - 2)

    return give


def _used(server: Redis) -> int:
    with server.client() as client:
        return client.info("memory")["used_memory_dataset"]


if __name__ == "__main__":
    main()
