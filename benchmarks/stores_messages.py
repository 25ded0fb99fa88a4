"""1,000 messages, as many at once as the pools of each allow by default, and in batches."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import asyncpg
from idemkit import PostgresBackend, idempotent

from measure import Cost, interleaved, table
from onceward import Once
from postgres_replay import Order, Replay, Statement, drive_asyncpg, orders
from stores_peers import IDEMKIT, handle_async

MESSAGES, TASKS, BATCH, ROUNDS = 1000, 64, 100, 3
TIMES = 4.0  # the goal
OURS, BATCHES, THEIRS = "onceward (pool of 10)", f"onceward, batches of {BATCH}", "idemkit (pool of 20)"
Way = Callable[[list[Order]], Awaitable[object]]


class Ways(NamedTuple):
    """What is measured, and how it ends."""

    ways: dict[str, Way]
    close: Callable[[], Awaitable[None]]


def messages(title: str, url: str, tape: dict[str, list[Statement]]) -> None:
    """Print the time of new messages, and of the same ones once more."""
    with asyncio.Runner() as runner:
        ways, close = runner.run(_ways(url, tape))
        cases: dict[str, Callable[[int], Cost]] = {}
        for case in ("first call", "duplicate"):
            for number, (name, way) in enumerate(ways.items()):
                cases[f"{case}, {name}"] = _case(runner, way, f"{title[0]}-{number}")  # the same: duplicates come later
        costs = interleaved(cases, ROUNDS)
        runner.run(close())
    rows = []
    for name in ways:
        new, again = (costs[f"{case}, {name}"] for case in ("first call", "duplicate"))
        faster, faster_again = (
            costs[f"{case}, {THEIRS}"].wall / cost.wall for case, cost in (("first call", new), ("duplicate", again))
        )
        goal = ("", "")
        if name.startswith("onceward"):
            goal = (f">= {TIMES:g} times", "yes" if faster >= TIMES else "NO")
        rows.append((name, new.wall, new.cpu, faster, again.wall, again.cpu, faster_again, *goal))
    table(
        f"{MESSAGES} messages, {TASKS} tasks, {title}: seconds, median of {ROUNDS} interleaved rounds",
        ["", "new", "CPU", "times idemkit", "duplicates", "CPU", "times idemkit", "goal for new", "met"],
        rows,
    )


def _case(runner: asyncio.Runner, way: Way, prefix: str) -> Callable[[int], Cost]:
    return lambda turn: runner.run(_timed(way, orders(f"{prefix}-{turn:04}", MESSAGES)))


async def _timed(way: Way, some: list[Order]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    await way(some)
    return Cost(time.process_time() - cpu, time.perf_counter() - wall)


async def _ways(url: str, tape: dict[str, list[Statement]]) -> Ways:
    backend = PostgresBackend.from_url(url)
    guarding, ledger = {}, {"name": "stores.handle"}
    for name, once in {
        OURS: Once(url, **ledger),
        "onceward, ?lanes=20": Once(f"{url}?lanes=20", **ledger),
    }.items():
        guarding[name] = _tasks(once(key="order.id")(handle_async))
    batches = Once(url, **ledger).batch(handle_async, key="order.id")

    async def in_batches(some: list[Order]) -> None:
        for at in range(0, len(some), BATCH):
            await batches.run_async(some[at : at + BATCH])

    connections = [await asyncpg.connect(url) for _ in range(10)]
    replay = Replay(tape)

    async def raw(some: list[Order]) -> None:
        shares = [some[at::10] for at in range(10)]
        case = "duplicate" if some[0]["id"] in seen else "first call"
        seen.update(order["id"] for order in some)
        steps = [drive_asyncpg(replay.steps(case, share), to) for share, to in zip(shares, connections, strict=True)]
        await asyncio.gather(*steps)

    seen: set[str] = set()

    async def close() -> None:
        await backend.aclose()
        await asyncio.gather(*(connection.close() for connection in connections))

    theirs = {THEIRS: _tasks(idempotent(backend=backend, config=IDEMKIT)(handle_async))}
    return Ways(guarding | {BATCHES: in_batches} | theirs | {"raw asyncpg, 10 connections": raw}, close)


def _tasks(call: Callable[[Order], Awaitable[object]]) -> Way:
    async def run(some: list[Order]) -> None:
        pending = iter(some)

        async def work() -> None:
            for order in pending:
                await call(order)

        await asyncio.gather(*(work() for _ in range(TASKS)))

    return run
