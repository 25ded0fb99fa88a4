"""What a guard costs over the same SQL on a raw sqlite3 connection, per first call and per duplicate, sync and async.

Run: python benchmarks/overhead.py [CALLS]
Goal: at most 30 µs of CPU over raw, and a duplicate answered by `cache` under 5 µs.

The ledger is measured in memory (/dev/shm) and on the disk. On the disk the guard takes some three times the CPU that it takes
in memory. The last table shows what a wait alone does to it, without any file: a guard on `memory:` in a loop, and after a
sleep of 100 µs before each call.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from shutil import rmtree

from measure import Cost, interleaved, places, table, timed
from onceward import Once
from raw_sqlite import RawLedger

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROUNDS = 7


def cases_for(folder: Path) -> dict[str, Callable[[int], Cost]]:
    raw = RawLedger(folder / "raw.db")
    once = Once(f"sqlite:///{folder}/once.db")

    @once(key="order.id")
    def guarded(order: dict[str, str]) -> int:
        return 1

    @once(key="order.id", cache=CALLS)
    def cached(order: dict[str, str]) -> int:
        return 1

    @once(key="order.id")
    async def guarded_async(order: dict[str, str]) -> int:
        return 1

    def each(function: Callable[[dict[str, str]], object], prefix: str) -> Callable[[int], Cost]:
        orders = [{"id": f"{prefix}-{n}"} for n in range(CALLS)]

        def case(turn: int) -> Cost:
            mine = [{"id": f"{order['id']}-{turn}"} for order in orders]
            return timed(lambda: [function(order) for order in mine], CALLS)

        return case

    def again(function: Callable[[dict[str, str]], object], prefix: str) -> Callable[[int], Cost]:
        orders = [{"id": f"{prefix}-{n}"} for n in range(CALLS)]
        for order in orders:
            function(order)
        return lambda _: timed(lambda: [function(order) for order in orders], CALLS)

    def in_loop(
        function: Callable[[dict[str, str]], Coroutine[object, object, object]], prefix: str, tasks: int, fresh: bool
    ) -> Callable[[int], Cost]:
        async def go(turn: int) -> Cost:
            pending = iter([{"id": f"{prefix}-{n}-{turn if fresh else 0}"} for n in range(CALLS)])

            async def work() -> None:
                for order in pending:
                    await function(order)

            async def everybody() -> None:
                await asyncio.gather(*(work() for _ in range(tasks)))

            if not fresh:
                await everybody()
                pending = iter([{"id": f"{prefix}-{n}-0"} for n in range(CALLS)])
            return await timed_async(everybody)

        return lambda turn: asyncio.run(go(turn))

    async def raw_in_thread(order: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        owner, fence = await loop.run_in_executor(None, raw.claim, order["id"])
        await loop.run_in_executor(None, raw.complete, order["id"], owner, fence)

    return {
        "raw first": each(lambda order: raw.first(order["id"]), "f"),
        "guard first": each(guarded, "f"),
        "raw duplicate": again(
            lambda order: raw.first(order["id"]) if order.pop("new", 0) else _seen(raw, order["id"]), "d"
        ),
        "guard duplicate": again(guarded, "d"),
        "cache duplicate": again(cached, "c"),
        "raw first, async, in a thread": in_loop(raw_in_thread, "a", 1, fresh=True),
        "guard first, async": in_loop(guarded_async, "a1", 1, fresh=True),
        "guard first, async, 64 tasks": in_loop(guarded_async, "a64", 64, fresh=True),
        "guard duplicate, async": in_loop(guarded_async, "ad", 1, fresh=False),
    }


def _seen(raw: RawLedger, key: str) -> None:
    try:
        raw.duplicate(key)
    except AssertionError:
        raw.first(key)


async def timed_async(run: Callable[[], Coroutine[object, object, None]]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    await run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(cpu / CALLS * 1e6, wall / CALLS * 1e6)


def after_a_wait() -> None:
    once = Once("memory:")

    @once(key="id")
    def guarded(id: int) -> int:  # noqa: A002 - the key's name
        return 1

    def calls(turn: int) -> None:
        for n in range(CALLS):
            guarded(turn * CALLS + n)

    def sleeps(turn: int) -> None:
        for _ in range(CALLS):
            time.sleep(1e-4)

    def both(turn: int) -> None:
        for n in range(CALLS):
            time.sleep(1e-4)
            guarded((turn + ROUNDS + 1) * CALLS + n)

    def case(run: Callable[[int], None]) -> Callable[[int], Cost]:
        return lambda turn: timed(lambda: run(turn), CALLS)

    costs = interleaved({"in a loop": case(calls), "sleep": case(sleeps), "both": case(both)}, ROUNDS)
    rows = [("in a loop", costs["in a loop"].cpu), ("after a sleep", costs["both"].cpu - costs["sleep"].cpu)]
    table("a first call on memory:, µs of CPU over the sleep's own", ["", "CPU"], rows)


def main() -> None:
    baseline = {
        "guard first": "raw first",
        "guard duplicate": "raw duplicate",
        "guard first, async": "raw first, async, in a thread",
        "guard first, async, 64 tasks": "raw first, async, in a thread",
        "guard duplicate, async": "raw duplicate",
    }
    for place, folder in places().items():
        costs = interleaved(cases_for(folder), ROUNDS)
        rows = []
        for name, cost in costs.items():
            base = costs.get(baseline.get(name, ""))
            over = ("", "") if base is None else (cost.cpu - base.cpu, cost.wall / base.wall)
            rows.append((name, cost.cpu, cost.wall, *over))
        table(
            f"ledger in {place}: µs per call, {CALLS} calls, median of {ROUNDS} interleaved rounds",
            ["", "CPU", "wall", "CPU over raw", "wall / raw"],
            rows,
        )
        rmtree(folder)
    after_a_wait()


if __name__ == "__main__":
    main()
