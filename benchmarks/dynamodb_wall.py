"""What is waited for with 5 ms of network: a batch of 10 records, and 1,000 messages over 64 connections."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function

from delay_proxy import DelayProxy
from dynamodb_limit import AsyncLimit, Limit
from dynamodb_peers import CONNECTIONS, REGION, Context, Order, boto3_client, peers
from measure import Cost, interleaved, table, timed
from onceward import Once

DELAY = 0.005
RECORDS, BATCHES, BATCH_ROUNDS = 10, 5, 7
MESSAGES, MESSAGE_ROUNDS = 1000, 3
FASTER, SECONDS, TIMES = 6.0, 0.5, 4.0  # the goals


# --- a batch --------------------------------------------------------------------------------------------------------


def batches(url: str, threads: ThreadPoolExecutor) -> None:
    """Print the time of a batch of 10 new records."""
    guards = peers(url, threads)
    with asyncio.Runner() as runner:

        def at_once(call: Callable[[Order], Awaitable[object]], prefix: str) -> Callable[[str], object]:
            async def all_of(orders: list[Order]) -> None:
                await asyncio.gather(*(call(order) for order in orders))

            return lambda batch: runner.run(all_of([{"id": f"{prefix}-{batch}-{n}"} for n in range(RECORDS)]))

        ways: dict[str, Callable[[str], object]] = {
            "onceward, a batch": _onceward(url),
            "Powertools, BatchProcessor": _powertools(url),
            "onceward, 10 awaited at once": at_once(guards["onceward"].await_, "o"),
            "idemkit, 10 awaited at once": at_once(guards["idemkit"].await_, "i"),
        }
        cases = {name: _batches(way) for name, way in ways.items()}
        costs = interleaved(cases, BATCH_ROUNDS)
        runner.run(_closed(guards["idemkit"].close))
    theirs = costs["Powertools, BatchProcessor"].wall
    rows = []
    for number, (name, cost) in enumerate(costs.items()):
        goal = () if number else (f">= {FASTER:g} times", "yes" if theirs >= FASTER * cost.wall else "NO")
        rows.append((name, cost.wall / 1e3, cost.cpu / 1e3, theirs / cost.wall, *(goal or ("", ""))))
    table(
        f"a batch of {RECORDS} new records, {DELAY * 1e3:g} ms of delay: ms, median of {BATCH_ROUNDS} interleaved rounds",
        ["", "wall", "CPU", "times faster than Powertools", "goal", "met"],
        rows,
    )


def _batches(way: Callable[[str], object]) -> Callable[[int], Cost]:
    return lambda turn: timed(lambda: [way(f"{turn}-{n}") for n in range(BATCHES)], BATCHES)


def _onceward(url: str) -> Callable[[str], object]:
    once = Once(f"dynamodb://onceward?region={REGION}&endpoint={quote(url)}")

    def handle(order: Order) -> dict[str, bool]:
        return {"ok": True}

    batch = once.batch(handle, key="order.id")

    def run(name: str) -> None:
        outcomes = batch.run([{"id": f"{name}-{n}"} for n in range(RECORDS)])
        assert all(outcome.status == "done" for outcome in outcomes)

    return run


def _powertools(url: str) -> Callable[[str], object]:
    def handle(order: Order) -> dict[str, bool]:
        return {"ok": True}

    guarded = idempotent_function(
        handle,
        data_keyword_argument="order",
        persistence_store=DynamoDBPersistenceLayer("powertools", boto3_client=boto3_client(url)),
        config=IdempotencyConfig(event_key_jmespath="id", lambda_context=Context()),
    )
    processor = BatchProcessor(event_type=EventType.SQS)

    def batch(name: str) -> None:
        event = {"Records": [_record(f"{name}-{n}") for n in range(RECORDS)]}
        failed = process_partial_response(
            event=event, record_handler=lambda record: guarded(order={"id": record.body}), processor=processor
        )
        assert failed == {"batchItemFailures": []}

    return batch


def _record(body: str) -> dict[str, object]:
    return {"messageId": body, "body": body, "receiptHandle": body, "eventSource": "aws:sqs", "attributes": {}}


# --- messages -------------------------------------------------------------------------------------------------------


def messages(title: str, proxy: DelayProxy, threads: ThreadPoolExecutor) -> None:
    """Print the time of 1,000 new messages."""
    guards = peers(proxy.url, threads)
    limit = AsyncLimit(proxy.url, "onceward")

    async def twice(order: Order) -> None:
        await limit.ask()
        await limit.ask()

    ways = {"onceward": guards["onceward"].await_, "idemkit": guards["idemkit"].await_}
    ways |= {f"{name} in threads": guards[name].await_ for name in ("Powertools", "raw boto3")}
    ways["2,000 pre-signed requests"] = twice
    with asyncio.Runner() as runner:
        cases = {
            name: lambda turn, n=name, w=way: runner.run(_all(w, f"{title[:8]}-{n}-{turn}"))
            for name, way in ways.items()
        }
        costs = interleaved(cases, MESSAGE_ROUNDS)
        runner.run(_closed(guards["idemkit"].close))
    mine = costs["onceward"].wall
    rows = []
    for name, cost in costs.items():
        goal = ("", "")
        if name == "onceward":
            goal = (f"<= {SECONDS} s", "yes" if mine <= SECONDS * 1e3 else "NO")
        elif name in {"idemkit", "Powertools in threads"}:
            goal = (f">= {TIMES:g} times", "yes" if cost.wall >= TIMES * mine else "NO")
        rows.append((name, cost.wall / 1e3, cost.cpu / 1e3, cost.wall / mine, *goal))
    table(
        f"{MESSAGES} new messages, {CONNECTIONS} connections, {DELAY * 1e3:g} ms of delay, {title}: "
        f"seconds, median of {MESSAGE_ROUNDS} interleaved rounds",
        ["", "wall", "client CPU", "onceward is faster by", "goal", "met"],
        rows,
    )


async def _all(call: Callable[[Order], Awaitable[object]], prefix: str) -> Cost:
    pending = iter([{"id": f"{prefix}-{n}"} for n in range(MESSAGES)])

    async def work() -> None:
        for order in pending:
            await call(order)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    # per thousand messages, in ms
    return Cost((time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3)


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    await close()


# --- what the proxy itself can do -----------------------------------------------------------------------------------


def proxies(server: str, plain: DelayProxy, delayed: DelayProxy, answering: DelayProxy) -> None:
    """Print how many requests a second each part takes, and the delay that it really adds."""
    rows = []
    places = {"the server, directly": server, "through the proxy, no delay": plain.url}
    places |= {"through the proxy, 5 ms": delayed.url, "answered by the proxy after 5 ms": answering.url}
    for name, url in places.items():
        limit, many = Limit(url, "onceward"), AsyncLimit(url, "onceward")
        limit.ask()
        one = timed(lambda limit=limit: [limit.ask() for _ in range(50)], 50)
        with asyncio.Runner() as runner:
            runner.run(_rate(many, 200))
            rows.append((name, one.wall / 1e3, round(max(runner.run(_rate(many, 2000)) for _ in range(3)))))
    table(
        f"the proxy: one request at a time, and {CONNECTIONS} at once (all pre-signed)",
        ["", "ms each", "requests/s, best of 3"],
        rows,
    )


async def _rate(limit: AsyncLimit, requests: int) -> float:
    pending = iter(range(requests))

    async def work() -> None:
        for _ in pending:
            await limit.ask()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return requests / (time.perf_counter() - start)
