"""Requests without a server: the application is called by hand, so that all CPU over its own is the middleware's."""

import asyncio
import gc
import time
from collections.abc import Callable
from typing import NamedTuple

from http_peers import ANSWER, BARE, BODY, HEADER, IDEMKIT, OURS, PEERS, App, Message, guarded
from measure import Cost, interleaved, table

CALLS, ROUNDS = 100, 15
LEDGER_CALLS, LEDGER_ROUNDS = 60, 5
WARM_UP = 20  # requests before those that are timed, in each round
FIRST, AGAIN, PASSED = "first request", "duplicate", "passed through, no key"
KINDS = (FIRST, AGAIN, PASSED)
CALLER = b"Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.c2lnbmF0dXJl"


class Reply(NamedTuple):
    """What an application has sent."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def scope_of(path: str, key: str | None, body: bytes = BODY, who: bytes = CALLER) -> Message:
    """Return the scope of a POST, with the headers that a common client sends."""
    headers = [
        (b"host", b"api.example.com"),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"connection", b"keep-alive"),
        (b"user-agent", b"python-httpx/0.28.1"),
        (b"authorization", who),
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/json"),
    ]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


async def ask(app: App, path: str, key: str | None, body: bytes = BODY, who: bytes = CALLER) -> Reply:
    """Send one request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of(path, key, body, who), receive, send)
    start, *parts = sent
    return Reply(start["status"], start["headers"], b"".join(part["body"] for part in parts))


def in_memory() -> None:
    """Print what each middleware adds on its ledger in memory, which is a new one in each round."""
    cases: dict[tuple[str, str], Callable[[int], Cost]] = {}
    with asyncio.Runner() as runner:
        for kind in KINDS:
            for name in (BARE, *PEERS):
                cases[kind, name] = lambda turn, kind=kind, name=name: runner.run(
                    _round(guarded(name, "memory:"), kind, f"{turn}", CALLS)
                )
        gc.collect()
        gc.freeze()  # what one library has loaded is not to cost the collections of another one's calls
        costs = interleaved(cases, ROUNDS)
    title = f"ledger in memory, {CALLS} keys; called by hand: µs per request, median of {ROUNDS} interleaved rounds"
    _print(title, costs, (HEADER, IDEMKIT))


def on_ledgers(dynamodb: str, sqlite: str) -> None:
    """Print what is added with a ledger that lasts; ``dynamodb`` is its server's URL, ``sqlite`` that of a file."""
    cases: dict[tuple[str, str], Callable[[int], Cost]] = {}
    with asyncio.Runner() as runner:
        apps = {
            BARE: guarded(BARE, ""),
            OURS: guarded(OURS, dynamodb),
            IDEMKIT: (theirs := guarded(IDEMKIT, dynamodb)),
            f"{OURS}, SQLite": guarded(OURS, sqlite),
        }
        for kind in KINDS[:2]:
            for name, app in apps.items():
                cases[kind, name] = lambda turn, kind=kind, app=app: runner.run(
                    _round(app, kind, f"calls-{kind.split(maxsplit=1)[0]}-{turn}", LEDGER_CALLS)
                )
        gc.collect()
        gc.freeze()
        costs = interleaved(cases, LEDGER_ROUNDS)
        runner.run(theirs._backend.aclose())
    title = f"ledger in DynamoDB; called by hand, one at a time: µs per request, median of {LEDGER_ROUNDS} interleaved rounds"
    _print(title, costs, (IDEMKIT,))


async def _round(app: App, kind: str, prefix: str, calls: int) -> Cost:
    path, keys = "/orders", [f"{prefix}-{n}" for n in range(calls)]
    if kind == PASSED:
        path, keys = "/other", [None] * calls
    for n in range(WARM_UP):
        await ask(app, path, keys[0] and f"{prefix}-warm-{n}")
    for _ in range(2 if kind == AGAIN else 1):
        wall, cpu = time.perf_counter(), time.process_time()
        for key in keys:
            reply = await ask(app, path, key)
            await asyncio.sleep(0)  # a turn of the loop, in which whatever was left to be done is done
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert (reply.status, reply.body) == (201, ANSWER)
    return Cost(cpu / calls * 1e6, wall / calls * 1e6)


def _print(title: str, costs: dict[tuple[str, str], Cost], peers: tuple[str, ...]) -> None:
    rows = []
    for (kind, name), cost in costs.items():
        bare = costs[kind, BARE]
        goal = ("", "")
        if name == OURS:
            fewer = [f"{'yes' if cost.cpu < costs[kind, peer].cpu else 'NO'} ({peer})" for peer in peers]
            goal = ("less CPU added than either", ", ".join(fewer))
        added = ("", "") if name == BARE else (cost.cpu - bare.cpu, cost.wall - bare.wall)
        rows.append((f"{kind}, {name}", cost.cpu, *added, *goal))
    table(title, ["", "CPU", "CPU added", "latency added", "goal", "met"], rows)
