"""Round trips, client CPU and time of a first call, a duplicate, a failed call and its retry, and a batch of 100."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

from delay_proxy import DelayProxy
from measure import Cost, interleaved, table, timed
from postgres_replay import CASES, Order, Statement, orders
from stores_peers import ASYNC, ASYNCPG, ELSEWHERE, ONCEWARD, PEER, PEER_ASYNC, UNDER, Peer, elsewhere, on_postgres

CALLS = 100  # and records of a batch
ROUNDS = 5
OVER = 30  # the goal: µs of CPU over the raw driver
TITLES = {
    "first call": "a first call",
    "duplicate": "a duplicate",
    "failed call": "a call that fails",
    "its retry": "the retry of a call that failed",
    "batch": f"a batch of {CALLS} new records, for each",
    "batch again": f"a batch of {CALLS} duplicates, for each",
}


def cases(
    url: str, tape: dict[str, list[Statement]], counting: DelayProxy, folder: Path, dynamodb: str, counter: DelayProxy
) -> None:
    """Print a table for each case."""
    with asyncio.Runner() as runner:
        through = on_postgres(counting.postgres, tape, runner)
        trips = {name: _counted(peer, number, counting) for number, (name, peer) in enumerate(through.items())}
        over = elsewhere(folder, counter.url)
        trips |= {ELSEWHERE[-1]: _counted(over[ELSEWHERE[-1]], len(trips), counter)}
        _close(through | over)
        peers = on_postgres(url, tape, runner) | elsewhere(folder, dynamodb)
        gc.collect()
        gc.freeze()  # what one library has loaded is not to cost the collections of another one's calls
        costs = interleaved(
            {
                f"{case}, {name}": _case(case, number, peer)
                for case in CASES
                for number, (name, peer) in enumerate(peers.items())
            },
            ROUNDS,
        )
        _close(peers)
    for case in CASES:
        _print(
            case, {name: costs[f"{case}, {name}"] for name in peers}, {name: seen[case] for name, seen in trips.items()}
        )


def some(case: str, number: int, turn: int) -> list[Order]:
    """Return the orders of a turn; a case that goes on where another one ended has the same."""
    kind = {"duplicate": 0, "first call": 0, "failed call": 1, "its retry": 1}.get(case, 2)
    made = orders(f"{number:02}{kind}{turn:05}", CALLS)
    return [order | {"fail": "yes"} for order in made] if case == "failed call" else made


def _case(case: str, number: int, peer: Peer) -> Callable[[int], Cost]:
    def run(turn: int) -> Cost:
        mine = some(case, number, turn)
        return timed(lambda: peer.run(case, mine), CALLS)

    return run


def _counted(peer: Peer, number: int, proxy: DelayProxy) -> dict[str, float]:
    """Return the round trips of a call in each case, after connections are made and statements known."""
    seen: dict[str, float] = {}
    for turn in (90_000, 90_001):
        for case in CASES:
            proxy.tally()
            peer.run(case, some(case, number, turn))
            seen[case] = proxy.tally().requests / CALLS
    return seen


def _close(peers: dict[str, Peer]) -> None:
    for peer in peers.values():
        peer.close()


def _print(case: str, costs: dict[str, Cost], trips: dict[str, float]) -> None:
    rows = []
    theirs = min(trips[PEER], trips[PEER_ASYNC])
    for name, cost in costs.items():
        over = cost.cpu - costs[UNDER[name]].cpu if name in UNDER else None
        goal = ("", "")
        if name in {ONCEWARD, ASYNC, ASYNCPG}:
            met = [over is not None and over <= OVER, trips[name] <= theirs]
            goal = (f"<= {OVER}; <= {theirs:.2f}", ", ".join("yes" if one else "NO" for one in met))
        shown = "" if over is None else round(over)
        rows.append((name, trips.get(name, ""), round(cost.cpu), shown, round(cost.wall), *goal))
    table(
        f"{TITLES[case]}: µs, {CALLS} calls one after the other, median of {ROUNDS} interleaved rounds",
        ["", "round trips", "CPU", "CPU over raw", "wall", "goal: over raw; round trips", "met"],
        rows,
    )
