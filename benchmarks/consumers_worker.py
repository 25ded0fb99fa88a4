"""Draining a queue: onceward's SQS worker against the loops of its peers, and against the queue's server itself."""

import gc
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import quote

from consumers_loops import BARE_THREADS, BATCH, Countdown, Loop, Place, handle, loops
from consumers_stub import Stub, body_of
from delay_proxy import DelayProxy
from dynamodb_peers import REGION
from measure import Cost, interleaved, table
from onceward import Once
from servers.ministack import Ministack

MESSAGES, COUNTED, WARM_UP, ROUNDS = 1000, 500, 100, 3
CONCURRENCIES = (10, 50)
POWERTOOLS = "Powertools, boto3 in threads"
Fill = Callable[[str, int], object]  # puts so many messages, whose keys or bodies begin with a prefix, into the queue


class Asked(NamedTuple):
    """Requests per message."""

    sqs: float
    ledger: float


def on_servers(server: str, counting: DelayProxy, stack: ExitStack) -> None:
    """Print the tables of a real queue's server and a real ledger's, without a delay."""
    ministack = Ministack("sqs")
    stack.callback(ministack.stop)
    asked = DelayProxy(ministack.port, mode="count")
    stack.callback(asked.stop)
    queue = ministack.queue("bench")

    def fill(prefix: str, count: int) -> None:
        bodies = [body_of(f"{prefix}-{n}") for n in range(count)]
        for start in range(0, count, 10):
            entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[start : start + 10])]
            ministack.ask("AmazonSQS.SendMessageBatch", QueueUrl=queue, Entries=entries)

    for concurrency in CONCURRENCIES:
        requests = _requests(Place(counting.url, asked.url, queue), concurrency, fill, asked, counting)
        costs = _costs(Place(server, ministack.url, queue), concurrency, fill)
        _print(f"ministack's queue, dynoxide's ledger, {concurrency} handlers at a time", costs, requests)
    print(
        f"\n  with no queue, this ledger has {_ledger_alone(server)} messages/s claimed and recorded in batches of {BATCH}"
    )


def _ledger_alone(url: str) -> int:
    """Return how many messages a second the ledger's server can take of onceward, whatever else there is to do."""
    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(url)}")
    batch = once.batch(handle, key="order.id")
    rates = []
    with ThreadPoolExecutor(BARE_THREADS) as threads:
        for turn in range(ROUNDS + 1):
            keys = [f"alone-{turn}-{n}" for n in range(MESSAGES)]
            orders = [[{"id": key, "bad": False} for key in keys[n : n + BATCH]] for n in range(0, MESSAGES, BATCH)]
            start = time.perf_counter()
            for outcomes in threads.map(batch.run, orders):
                assert all(outcome.ok for outcome in outcomes)
            rates.append(MESSAGES / (time.perf_counter() - start))
    return round(statistics.median(rates[1:]))


def on_stub(delay: float, stack: ExitStack) -> None:
    """Print the tables of a stub instead of both servers, which answers after a delay."""
    stub = Stub(delay)
    stack.callback(stub.stop)
    for concurrency in CONCURRENCIES:
        costs = _costs(Place(stub.url, stub.url, stub.queue), concurrency, stub.fill)
        title = f"a stub for queue and ledger, {delay * 1e3:g} ms of delay"
        _print(f"{title}, {concurrency} handlers at a time", costs, {})


def _requests(place: Place, concurrency: int, fill: Fill, sqs: DelayProxy, ledger: DelayProxy) -> dict[str, Asked]:
    found = {}
    with ExitStack() as stack:
        for name, loop in loops(place, concurrency, stack).items():
            _drain(loop, fill, f"counted-{concurrency}-{name}-0", WARM_UP)
            sqs.tally()
            ledger.tally()
            _drain(loop, fill, f"counted-{concurrency}-{name}-1", COUNTED)
            found[name] = Asked(sqs.tally().requests / COUNTED, ledger.tally().requests / COUNTED)
    return found


def _costs(place: Place, concurrency: int, fill: Fill) -> dict[str, Cost]:
    def case(name: str, loop: Loop) -> Callable[[int], Cost]:
        prefix = f"{place.queue[-4:]}-{concurrency}-{name}"
        return lambda turn: _drain(loop, fill, f"{prefix}-{turn}", MESSAGES if turn else WARM_UP)

    with ExitStack() as stack:
        cases = {name: case(name, loop) for name, loop in loops(place, concurrency, stack).items()}
        gc.collect()
        gc.freeze()  # as in dynamodb_cpu.py
        return interleaved(cases, ROUNDS)


def _drain(loop: Loop, fill: Fill, prefix: str, count: int) -> Cost:
    fill(prefix, count)
    countdown = Countdown(count)
    loop(countdown)
    return countdown.cost


def _print(title: str, costs: dict[str, Cost], requests: dict[str, Asked]) -> None:
    theirs = costs[POWERTOOLS]
    head = ["", "messages/s", "CPU µs/message", "times as fast as Powertools", "CPU saved, times"]
    rows = []
    for name, cost in costs.items():
        rows.append((name, round(1e6 / cost.wall), round(cost.cpu), theirs.wall / cost.wall, theirs.cpu / cost.cpu))
    if requests:
        head += ["SQS requests/message", "ledger requests/message"]
        rows = [(*row, *requests[row[0]]) for row in rows]
    table(f"{MESSAGES} messages of {title}: median of {ROUNDS} interleaved rounds", head, rows)
