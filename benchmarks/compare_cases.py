"""The work that ``compare.py`` times: started once for each of the two trees, it runs the case it is asked for.

It reads ``CASE TURN`` lines and answers each with the CPU microseconds of one call. It uses only what both trees have.
"""

import asyncio
import gc
import json
import logging
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from consumers_stub import Stub
from onceward import Once
from onceward.aws import Queue, SqsWorker, on_sqs, on_sqs_fifo
from onceward.web import AsgiIdempotency, Route, Rules

Case = Callable[[int], float]  # from the number of the round to µs of CPU
Message = dict[str, Any]
TASKS, THREADS, RECORDS = 64, 8, 100_000
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a sync costs nothing


def cpu(calls: int, run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return (time.process_time() - began) / calls * 1e6


def guards(name: str, url: str, calls: int, prefix: str = "") -> dict[str, Case]:
    """Return first calls and duplicates on one ledger, called and awaited."""
    once = Once(url)

    @once(key="order.id", name="sync")
    def guarded(order: dict[str, str]) -> int:
        return 1

    @once(key="order.id", name="async")
    async def guarded_async(order: dict[str, str]) -> int:
        return 1

    def orders(turn: object) -> list[dict[str, str]]:
        return [{"id": f"{prefix}-{turn}-{n}"} for n in range(calls)]

    def called(turn: object) -> float:
        mine = orders(turn)
        return cpu(calls, lambda: [guarded(order) for order in mine])

    runner = asyncio.Runner()

    def awaited(turn: object) -> float:
        mine = orders(turn)

        async def go() -> None:
            for order in mine:
                await guarded_async(order)

        return cpu(calls, lambda: runner.run(go()))

    def tasks(turn: object) -> float:
        pending = iter(orders(f"tasks-{turn}"))

        async def work() -> None:
            for order in pending:
                await guarded_async(order)

        async def go() -> None:
            await asyncio.gather(*(work() for _ in range(TASKS)))

        return cpu(calls, lambda: runner.run(go()))

    return {
        f"{name}, first call": called,
        f"{name}, first call, {TASKS} tasks at once": tasks,
        f"{name}, duplicate": lambda turn: called(0) if turn else called(turn),
        f"{name}, first call, awaited": awaited,
        f"{name}, duplicate, awaited": lambda turn: awaited(0) if turn else awaited(turn),
    }


def cached(calls: int) -> Case:
    once = Once("memory:")

    @once(key="order.id", cache=calls, name="cached")
    def guarded(order: dict[str, str]) -> int:
        return 1

    mine = [{"id": f"{n}"} for n in range(calls)]
    return lambda _: cpu(calls, lambda: [guarded(order) for order in mine])


def in_threads(url: str, calls: int) -> Case:
    """Return ``once.run`` in threads that share a ledger."""
    once = Once(url, name="threads")
    pool = ThreadPoolExecutor(THREADS)
    return lambda turn: cpu(calls, lambda: list(pool.map(lambda n: once.run(f"{turn}-{n}", int), range(calls))))


def grown(path: str, calls: int) -> Case:
    """Return first calls on a ledger of many records, copied from one with whatever columns this tree has."""
    once = Once(f"sqlite:///{path}", name="grown")
    once.run("copied", int)
    connection = sqlite3.connect(path)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(onceward)") if row[1] != "key"]
    names = ", ".join(columns)
    connection.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {RECORDS}) "
        f"INSERT INTO onceward (key, {names}) SELECT printf('grown:%08d', i * 7919 % {RECORDS}), {names} "
        "FROM n, (SELECT * FROM onceward)"
    )
    connection.commit()
    connection.close()
    return lambda turn: cpu(calls, lambda: [once.run(f"{n * 997:08d}-{turn}", int) for n in range(calls)])


def batch(url: str, size: int, prefix: str = "") -> Case:
    charging = Once(url).batch(charge, key="order.id", name="batch")

    def case(turn: int) -> float:
        mine = [{"id": f"{prefix}-{turn}-{n}"} for n in range(size)]
        return cpu(size, lambda: charging.run(mine))

    return case


def charge(order: dict[str, str]) -> int:
    return 1


def event(url: str, size: int, events: int, prefix: str, *, fifo: bool = False) -> Case:
    """Return Lambda events of new messages from SQS."""
    handler = (on_sqs_fifo if fifo else on_sqs)(Once(url), name="fifo" if fifo else "event")(charge)

    def case(turn: int) -> float:
        made = [{"Records": [record(f"{prefix}-{turn}-{n}-{m}", fifo) for m in range(size)]} for n in range(events)]
        return cpu(size * events, lambda: [handler(one, Context()) for one in made])

    return case


class Context:
    """What Lambda hands to a handler."""

    function_name, aws_request_id = "orders", "5f6b7d1e-0000-4000-8000-000000000000"

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of a minute."""
        return 30_000


def record(number: str, fifo: bool) -> Message:
    return {
        "messageId": number,
        "receiptHandle": "AQEB",
        "body": json.dumps({"id": number}),
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": "1700000000000",
            "MessageGroupId": number,
            "SequenceNumber": "1",
        },
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:eu-west-1:000000000000:orders{'.fifo' if fifo else ''}",
        "awsRegion": "eu-west-1",
    }


def worker(messages: int) -> Case:
    """Return a worker that drains a stub's queue, ten calls at a time; the stub is the ledger, too."""
    stub = Stub()
    once = Once(f"dynamodb://stub?region=eu-west-1&endpoint={quote(stub.url)}")
    queue = Queue(stub.queue, region="eu-west-1", endpoint=stub.url)
    runner = asyncio.Runner()

    async def work(order: Message) -> int:
        return 1

    def case(turn: int) -> float:
        stub.fill(f"turn-{turn}", messages)
        made = SqsWorker(once, queue, work, name="worker", concurrency=10, wait=1)
        return cpu(messages, lambda: runner.run(made.run_async(until_empty=True)))

    return case


BODY = b'{"item":"book","amount":"12.50","currency":"EUR","quantity":2}'


async def app(scope: Message, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b'{"id":"8e03978e"}'})


def http(ledger: str, url: str, calls: int, prefix: str = "") -> dict[str, Case]:
    rules = Rules(Route("/orders"), scope=lambda _: "me")
    guarded = AsgiIdempotency(app, Once(url), rules, name="http")
    runner = asyncio.Runner()

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        pass

    async def ask(path: str, turn: object) -> None:
        for n in range(calls):
            await guarded(request(path, f"key-{prefix}-{turn}-{n}"), receive, send)

    def case(path: str, turn: object) -> float:
        work: Coroutine[Any, Any, None] = ask(path, turn)
        return cpu(calls, lambda: runner.run(work))

    return {
        f"HTTP on {ledger}, first request": lambda turn: case("/orders", turn),
        f"HTTP on {ledger}, duplicate": lambda turn: case("/orders", 0) if turn else case("/orders", turn),
        f"HTTP on {ledger}, no route covers it": lambda turn: case("/other", turn),
    }


def request(path: str, key: str) -> Message:
    headers = {
        "host": "api.example.com",
        "user-agent": "python-httpx/0.28.1",
        "content-length": str(len(BODY)),
        "content-type": "application/json",
        "idempotency-key": key,
    }
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


def cases(folder: str, tree: str, prefix: str, server: str | None) -> dict[str, Case]:
    found = guards("memory", "memory:", 500)
    found["memory, duplicate from the cache"] = cached(2000)
    found |= guards("SQLite", f"sqlite:///{folder}/once.db", 200)
    found["SQLite, batch of 100, each"] = batch(f"sqlite:///{folder}/batch.db", 100)
    found[f"SQLite, once.run in {THREADS} threads"] = in_threads(f"sqlite:///{folder}/threads.db", 400)
    found[f"SQLite, first call with {RECORDS} records"] = grown(f"{folder}/grown.db", 200)
    found |= http("memory", "memory:", 200) | http("SQLite", f"sqlite:///{folder}/http.db", 100)
    found["SQS worker, each message"] = worker(500)
    if server:
        # each tree has a table of its own, each start keys of its own
        dynamodb = f"dynamodb://{tree}?region=eu-west-1&endpoint={quote(server)}"
        found |= guards("DynamoDB", dynamodb, 60, prefix) | http("DynamoDB", dynamodb, 60, prefix)
        found["DynamoDB, batch of 10, each"] = batch(dynamodb, 10, prefix)
        found["DynamoDB, Lambda event of 10 new messages, each"] = event(dynamodb, 10, 6, prefix)
        found["DynamoDB, FIFO event of 10 new messages, each"] = event(dynamodb, 10, 6, prefix, fifo=True)
    return found


def main() -> None:
    (tree, prefix), server = sys.argv[1:], os.environ.get("ONCEWARD_BENCH_DYNAMODB")
    logging.getLogger("onceward").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="onceward-bench-", dir=MEMORY) as folder:
        found = cases(folder, tree, prefix, server)
        print(json.dumps(list(found)), flush=True)
        gc.collect()
        gc.freeze()  # what was loaded before is not to cost the collections of a case
        for line in sys.stdin:
            name, turn = json.loads(line)
            print(found[name](turn), flush=True)


if __name__ == "__main__":
    main()
