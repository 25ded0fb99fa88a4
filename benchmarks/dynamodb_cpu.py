"""Client CPU per first call and per duplicate, sync and async, of onceward, its peers and a pre-signed request.

A first call is two requests, so its limit is two of the pre-signed one; a duplicate's limit is one. The limit of the goals
is a constant request over the standard library's ``http.client``; what the same bytes cost over a bare socket, and over a
bare event loop, stands beside it, for onceward's own wire is nearer to these.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from dynamodb_limit import AsyncLimit, Limit
from dynamodb_peers import CONNECTIONS, Order, Peer, peers
from measure import Cost, interleaved, table, timed

CALLS = 200
ROUNDS = 5
SHARE, TIMES = 0.4, 3.0  # the goals: of Powertools', and of the limit
LIMIT, BARE, POWERTOOLS = "pre-signed limit", "pre-signed, bare socket", "Powertools"


def cpu(url: str, threads: ThreadPoolExecutor) -> None:
    """Print both tables."""
    guards = peers(url, threads)
    limit = Limit(url, "onceward")
    cases: dict[str, Callable[[int], Cost]] = {}
    for name, peer in guards.items():
        cases[f"first call, {name}"] = _calls(peer.call, f"sync-first-{name}", fresh=True)
        cases[f"duplicate, {name}"] = _calls(peer.call, f"sync-again-{name}", fresh=False)
    for name, ask in ((LIMIT, limit.ask_http_client), (BARE, limit.ask)):
        cases[f"first call, {name}"] = _times(ask, 2)
        cases[f"duplicate, {name}"] = _times(ask, 1)
    gc.collect()
    gc.freeze()  # what one library has loaded is not to cost the collections of another one's calls
    _print("sync, one call after the other", interleaved(cases, ROUNDS))
    with asyncio.Runner() as runner:
        awaited = _awaited(runner, url, guards)
        for what, times in (("first call", 2), ("duplicate", 1)):
            awaited[f"{what}, {LIMIT}"] = _times(limit.ask_http_client, times)
        _print(f"async, {CONNECTIONS} tasks", interleaved(awaited, ROUNDS))
        for peer in guards.values():
            runner.run(_ended(peer))


def _awaited(runner: asyncio.Runner, url: str, guards: dict[str, Peer]) -> dict[str, Callable[[int], Cost]]:
    limit = AsyncLimit(url, "onceward")
    cases: dict[str, Callable[[int], Cost]] = {}

    def case(call: Callable[[Order], Awaitable[object]], prefix: str, times: int, fresh: bool) -> Callable[[int], Cost]:
        return lambda turn: runner.run(_tasks(call, f"{prefix}-{turn if fresh else 0}", times))

    for name, peer in guards.items():
        shown = f"{name} in threads" if name in {POWERTOOLS, "raw boto3"} else name
        cases[f"first call, {shown}"] = case(peer.await_, f"async-first-{name}", 1, fresh=True)
        cases[f"duplicate, {shown}"] = case(peer.await_, f"async-again-{name}", 1, fresh=False)
    cases[f"first call, {BARE}"] = case(lambda _: limit.ask(), "", 2, fresh=False)
    cases[f"duplicate, {BARE}"] = case(lambda _: limit.ask(), "", 1, fresh=False)
    return cases


def _calls(call: Callable[[Order], object], prefix: str, *, fresh: bool) -> Callable[[int], Cost]:
    def case(turn: int) -> Cost:
        orders = [{"id": f"{prefix}-{turn if fresh else 0}-{n}"} for n in range(CALLS)]
        return timed(lambda: [call(order) for order in orders], CALLS)

    return case


def _times(ask: Callable[[], object], times: int) -> Callable[[int], Cost]:
    return lambda _: timed(lambda: [ask() for _ in range(CALLS * times)], CALLS)


async def _tasks(call: Callable[[Order], Awaitable[object]], prefix: str, times: int) -> Cost:
    pending = iter([{"id": f"{prefix}-{n}"} for n in range(CALLS * times)])

    async def work() -> None:
        for order in pending:
            await call(order)

    wall, cpu_ = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    cpu_, wall = time.process_time() - cpu_, time.perf_counter() - wall
    return Cost(cpu_ / CALLS * 1e6, wall / CALLS * 1e6)


async def _ended(peer: Peer) -> None:
    await peer.close()


def _print(how: str, costs: dict[str, Cost]) -> None:
    rows = []
    for what in ("first call", "duplicate"):
        mine = {name: cost for name, cost in costs.items() if name.startswith(what)}
        theirs = next(cost.cpu for name, cost in mine.items() if POWERTOOLS in name)
        limit, bare = (mine[f"{what}, {name}"].cpu for name in (LIMIT, BARE))
        for name, cost in mine.items():
            goal = ("", "")
            if "onceward" in name:
                met = [cost.cpu <= SHARE * theirs, cost.cpu <= TIMES * limit]
                goal = (f"<= {SHARE}, <= {TIMES:g}", ", ".join("yes" if one else "NO" for one in met))
            rows.append(
                (name, round(cost.cpu), round(cost.wall), cost.cpu / theirs, cost.cpu / limit, cost.cpu / bare, *goal)
            )
    table(
        f"client CPU, {how}: µs per call, {CALLS} calls, median of {ROUNDS} interleaved rounds",
        ["", "CPU", "wall", "of Powertools", "of the limit", "of a bare socket", "goal", "met"],
        rows,
    )
