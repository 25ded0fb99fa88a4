"""The work that ``compare.py`` times: started once for each of the two trees, it runs the case it is asked for.

It reads ``CASE TURN`` lines and answers each with the CPU microseconds of one call. It uses only what both trees have.
"""

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onceward import Once
from onceward.aws import on_sqs
from onceward.web import AsgiIdempotency, Route, Rules

Case = Callable[[int], float]  # from the number of the round to µs of CPU
Message = dict[str, Any]
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

    return {
        f"{name}, first call": called,
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


def batch(url: str, size: int) -> Case:
    charging = Once(url).batch(charge, key="order.id", name="batch")

    def case(turn: int) -> float:
        mine = [{"id": f"{turn}-{n}"} for n in range(size)]
        return cpu(size, lambda: charging.run(mine))

    return case


def charge(order: dict[str, str]) -> int:
    return 1


def event(url: str, size: int, events: int, prefix: str) -> Case:
    """Return Lambda events of new messages from SQS."""
    handler = on_sqs(Once(url), name="event")(charge)

    def case(turn: int) -> float:
        made = [{"Records": [record(f"{prefix}-{turn}-{n}-{m}") for m in range(size)]} for n in range(events)]
        return cpu(size * events, lambda: [handler(one, Context()) for one in made])

    return case


class Context:
    """What Lambda hands to a handler."""

    function_name, aws_request_id = "orders", "5f6b7d1e-0000-4000-8000-000000000000"

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of a minute."""
        return 30_000


def record(number: str) -> Message:
    return {
        "messageId": number,
        "receiptHandle": "AQEB",
        "body": json.dumps({"id": number}),
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-west-1:000000000000:orders",
        "awsRegion": "eu-west-1",
    }


BODY = b'{"item":"book","amount":"12.50","currency":"EUR","quantity":2}'


async def app(scope: Message, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b'{"id":"8e03978e"}'})


def http(calls: int) -> dict[str, Case]:
    rules = Rules(Route("/orders"), scope=lambda _: "me")
    guarded = AsgiIdempotency(app, Once("memory:"), rules, name="http")
    runner = asyncio.Runner()

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        pass

    async def ask(path: str, turn: object) -> None:
        for n in range(calls):
            await guarded(request(path, f"key-{turn}-{n}"), receive, send)

    def case(path: str, turn: object) -> float:
        work: Coroutine[Any, Any, None] = ask(path, turn)
        return cpu(calls, lambda: runner.run(work))

    return {
        "HTTP, first request": lambda turn: case("/orders", turn),
        "HTTP, duplicate": lambda turn: case("/orders", 0) if turn else case("/orders", turn),
        "HTTP, no route covers it": lambda turn: case("/other", turn),
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
    found |= http(200)
    if server:
        # each tree has a table of its own, each start keys of its own
        dynamodb = f"dynamodb://{tree}?region=eu-west-1&endpoint={quote(server)}"
        found |= guards("DynamoDB", dynamodb, 60, prefix)
        found["DynamoDB, Lambda event of 10 new messages, each"] = event(dynamodb, 10, 6, prefix)
    return found


def main() -> None:
    (tree, prefix), server = sys.argv[1:], os.environ.get("ONCEWARD_BENCH_DYNAMODB")
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
