"""Round trips, client CPU and time of a first call, a duplicate, a failed call and its retry, and a batch of 100."""

import asyncio
import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from delay_proxy import DelayProxy
from measure import Cost, interleaved, table, timed
from postgres_replay import CASES, Order, Statement, orders
from servers.postgres import Postgres
from stores_peers import ASYNC, ELSEWHERE, ONCEWARD, PEER, PEER_ASYNC, UNDER, Peer, elsewhere, on_postgres

CALLS, BATCH = 50, 100
ROUNDS = 5
OVER = 30  # the goal: µs of CPU over the raw driver
TITLES = {
    "first call": "a first call",
    "duplicate": "a duplicate",
    "failed call": "a call that fails",
    "its retry": "the retry of a call that failed",
    "batch": f"a batch of {BATCH} new records, for each",
    "batch again": f"a batch of {BATCH} duplicates, for each",
}


class Measured(NamedTuple):
    """A line of a table; the microseconds of a call are the client's, and those of the server's CPU."""

    name: str
    trips: float | None
    cost: Cost
    served: int | str


class Servers(NamedTuple):
    """PostgreSQL and DynamoDB, each with a proxy that counts, and a folder."""

    postgres: Postgres
    counting: DelayProxy
    dynamodb: str
    counting_dynamodb: DelayProxy
    folder: Path


def cases(servers: Servers, tape: dict[str, list[Statement]]) -> None:
    """Print a table for each case."""
    served: dict[str, list[float]] = {}
    with asyncio.Runner() as runner:
        through = on_postgres(servers.counting.postgres, tape, runner)
        trips = {name: _counted(peer, number, servers.counting) for number, (name, peer) in enumerate(through.items())}
        over = elsewhere(servers.folder, servers.counting_dynamodb.url)
        trips |= {ELSEWHERE[-1]: _counted(over[ELSEWHERE[-1]], len(trips), servers.counting_dynamodb)}
        _close(through | over)
        peers = on_postgres(servers.postgres.url, tape, runner) | elsewhere(servers.folder, servers.dynamodb)
        gc.collect()
        gc.freeze()  # what one library has loaded is not to cost the collections of another one's calls
        measured: dict[str, Callable[[int], Cost]] = {}
        for case in CASES:
            for number, (name, peer) in enumerate(peers.items()):
                seen = served[f"{case}, {name}"] = []
                measured[f"{case}, {name}"] = _case(case, number, peer, servers.postgres.pid, seen)
        costs = interleaved(measured, ROUNDS)
        _close(peers)
    for case in CASES:
        rows = []
        for name in peers:
            at = f"{case}, {name}"
            trip = trips[name][case] if name in trips else None
            rows.append(Measured(name, trip, costs[at], "" if name in ELSEWHERE else round(median(served[at]))))
        _print(case, {row.name: row for row in rows})


def some(case: str, number: int, turn: int) -> list[Order]:
    """Return the orders of a turn; a case that goes on where another one ended has the same."""
    kind = {"duplicate": 0, "first call": 0, "failed call": 1, "its retry": 1}.get(case, 2)
    made = orders(f"{number:02}{kind}{turn:05}", BATCH if kind == 2 else CALLS)
    return [order | {"fail": "yes"} for order in made] if case == "failed call" else made


def _case(case: str, number: int, peer: Peer, server: int, served: list[float]) -> Callable[[int], Cost]:
    def run(turn: int) -> Cost:
        mine = some(case, number, turn)
        before = _server_cpu(server)
        cost = timed(lambda: peer.run(case, mine), len(mine))
        served.append((_server_cpu(server) - before) / len(mine) * 1e6)
        return cost

    return run


def _server_cpu(postmaster: int) -> float:
    """Return the seconds of CPU that the server's processes have taken."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text(encoding="ascii").split()
    spent = 0
    for child in children:
        with contextlib.suppress(OSError):  # it has just ended
            spent += int(Path(f"/proc/{child}/schedstat").read_text(encoding="ascii").split()[0])
    return spent / 1e9


def _counted(peer: Peer, number: int, proxy: DelayProxy) -> dict[str, float]:
    """Return the round trips of a call in each case, after connections are made and statements known."""
    seen: dict[str, float] = {}
    for turn in (90_000, 90_001):
        for case in CASES:
            mine = some(case, number, turn)
            proxy.tally()
            peer.run(case, mine)
            seen[case] = proxy.tally().requests / len(mine)
    return seen


def _close(peers: dict[str, Peer]) -> None:
    for peer in peers.values():
        peer.close()


def _print(case: str, rows: dict[str, Measured]) -> None:
    shown = []
    theirs = min(row.trips for row in rows.values() if row.name in {PEER, PEER_ASYNC})
    for name, trips, cost, served in rows.values():
        over = cost.cpu - rows[UNDER[name]].cost.cpu if name in UNDER else None
        goal = ("", "")
        if name in {ONCEWARD, ASYNC}:
            met = [over is not None and over <= OVER, trips <= theirs]
            goal = (f"<= {OVER}; <= {theirs:.2f}", ", ".join("yes" if one else "NO" for one in met))
        figures = ("" if trips is None else trips, round(cost.cpu), "" if over is None else round(over), served)
        shown.append((name, *figures, round(cost.wall), *goal))
    table(
        f"{TITLES[case]}: µs, one after the other, median of {ROUNDS} interleaved rounds",
        ["", "round trips", "CPU", "CPU over raw", "server's CPU", "wall", "goal: over raw; round trips", "met"],
        shown,
    )
