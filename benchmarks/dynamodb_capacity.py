"""Requests and capacity units per call, and from which share of duplicates on probe="read" is cheaper.

Units are those of the server's own answers. The answer to a refused conditional write tells none; DynamoDB charges it as
one that is made (Developer Guide, "Condition expressions": a write that fails its condition consumes write capacity), so
it counts as one unit a KB here, and all items are smaller than that.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from delay_proxy import DelayProxy, Seen
from dynamodb_peers import Boom, Peer, onceward, peers
from measure import table

CALLS = 20
DELIVERIES = 200
SHARES = (0, 5, 10, 20, 50)  # duplicates in a hundred deliveries
# DynamoDB's price list, on demand: a million read request units costs a fifth of a million write request units.
READ_PRICE = 0.2


def requests_and_units(proxy: DelayProxy, threads: ThreadPoolExecutor) -> None:
    """Print both for a first call, a duplicate and a failed call of each peer."""
    seen: dict[str, list[tuple[float, float, float]]] = {}  # requests, read units, write units
    for name, peer in peers(proxy.url, threads).items():
        peer.call({"id": "warm-up"})
        peer.call({"id": "warm-up"})
        proxy.tally()
        seen[name] = []
        for _ in ("first call", "duplicate"):
            for n in range(CALLS):
                peer.call({"id": f"units-{n}"})
            seen[name].append(_each(proxy.tally()))
        for _ in ("failed call", "its retry"):
            for n in range(CALLS):
                with suppress(Boom):
                    peer.fail({"id": f"fails-{n}"})
            seen[name].append(_each(proxy.tally()))
    rows = []
    for number, what in enumerate(("first call", "duplicate", "failed call", "retry of it")):
        theirs = [costs[number] for name, costs in seen.items() if name != "onceward"]
        fewest = [min(column) for column in zip(*theirs, strict=True)]
        for name, costs in seen.items():
            requests, reads, writes = costs[number]
            met = all(mine <= least for mine, least in zip(costs[number], fewest, strict=True))
            if (name, what) == ("raw boto3", "retry of it"):
                continue  # it has no retries
            goal = ("no peer fewer", "yes" if met else "NO") if name == "onceward" else ("", "")
            rows.append((f"{what}, {name}", f"{requests:g}", f"{writes:g}", f"{reads:g}", *goal))
    table(
        "requests and capacity units of one call (a refused write counts as 1 write unit)",
        ["", "requests", "write units", "read units", "goal", "met"],
        rows,
    )
    _first_of_process(proxy)


def _first_of_process(proxy: DelayProxy) -> None:
    proxy.tally()
    onceward(proxy.url).call({"id": "first-of-process"})
    seen = proxy.tally()
    once = f"{seen.requests} requests, {seen.writes:g} write units and {seen.reads:g} read units"
    print(
        "\n  the retry of a failed call takes one request and write unit more than a peer's, which keep no record of the"
    )
    print("  failure: the claim is refused by that record first, and goes on from its attempts and its fence")
    print(f"  onceward's very first call of a process: {once}: it asks for the server's time, once")


def _each(seen: Seen) -> tuple[float, float, float]:
    return seen.requests / CALLS, seen.reads / CALLS, (seen.writes + seen.refused) / CALLS


def probe(proxy: DelayProxy) -> None:
    """Print what deliveries cost with and without probe="read", and where both cost the same."""
    ways = {"without": onceward(proxy.url), "probe=read": onceward(proxy.url, "&probe=read")}
    for name, peer in ways.items():
        peer.call({"id": f"warm-up {name}"})
    proxy.tally()
    rows, costs = [], []
    for share in SHARES:
        seen = {name: _stream(proxy, peer, share, f"{name}-{share}") for name, peer in ways.items()}
        costs.append([_price(one) for one in seen.values()])
        parts = [
            (
                f"{one.requests / DELIVERIES:.2f}",
                f"{(one.writes + one.refused) / DELIVERIES:.2f}",
                one.reads / DELIVERIES,
            )
            for one in seen.values()
        ]
        rows.append((f"{share} % duplicates", *parts[0], *parts[1], *(f"{cost:.3f}" for cost in costs[-1])))
    head = ["requests", "write u.", "read u."]
    table(
        f'probe="read": per delivery, {DELIVERIES} deliveries; price in write units, a read unit being {READ_PRICE:g} of one',
        ["", *head, *(f"probe: {name}" for name in head), "price", "probe: price"],
        rows,
    )
    print(
        f"\n  both cost the same at {_crossing(costs):.1f} % duplicates; a probe makes a first call three requests, not two,"
    )
    print("  and a duplicate that comes before DynamoDB has replicated the record costs the read and the refusal")


def _stream(proxy: DelayProxy, peer: Peer, share: int, prefix: str) -> Seen:
    firsts = DELIVERIES - DELIVERIES * share // 100
    for n in range(DELIVERIES):
        peer.call({"id": f"{prefix}-{n % firsts}"})
    return proxy.tally()


def _price(seen: Seen) -> float:
    return (seen.writes + seen.refused + seen.reads * READ_PRICE) / DELIVERIES


def _crossing(costs: list[list[float]]) -> float:
    """Return the share at which the lines through the first and the last point meet."""
    start, end = (one[1] - one[0] for one in (costs[0], costs[-1]))
    return SHARES[0] + (SHARES[-1] - SHARES[0]) * start / (start - end)
