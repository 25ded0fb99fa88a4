"""Guards of one handler on ledgers of their own: onceward's in all its ways, idemkit's, and what they stand on.

Each runs orders one after the other, or a batch, and remembers nothing between two calls: each call asks its ledger.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import asyncpg
import psycopg
from idemkit import MethodConfig, PostgresBackend, idempotent, idempotent_sync
from idemkit.core.sync_bridge import run_sync

from onceward import Once
from postgres_limit import BareSocket
from postgres_replay import (
    Boom,
    Order,
    Replay,
    Statement,
    drive,
    drive_async,
    drive_asyncpg,
    handle,
)

logging.getLogger("idemkit").setLevel(logging.ERROR)
REGION = "eu-west-1"
IDEMKIT = MethodConfig(key_fields=["order.id"], scope=lambda: "bench")

NAMES = ONCEWARD, ASYNC, PEER, PEER_ASYNC, RAW, RAW_ASYNC, RAW_ASYNCPG, BARE = (
    "onceward",
    "onceward, async",
    "idemkit",
    "idemkit, async",
    "raw psycopg",
    "raw psycopg, async",
    "raw asyncpg",
    "bare socket",
)
ELSEWHERE = ("onceward in memory", "onceward in SQLite", "onceward in DynamoDB (dynoxide)")
# Whose CPU is compared with whose.
UNDER = {ONCEWARD: RAW, ASYNC: RAW_ASYNC, PEER: RAW, PEER_ASYNC: RAW_ASYNCPG}


class Peer(NamedTuple):
    """What is measured: ``run(case, orders)``, and its end."""

    run: Callable[[str, list[Order]], object]
    close: Callable[[], object] = lambda: None


async def handle_async(order: Order) -> dict[str, bool]:
    """Do nothing; an order can ask it to fail."""
    return handle(order)


def called(
    call: Callable[[Order], object], batch: Callable[[list[Order]], object] | None = None
) -> Callable[..., None]:
    """Return what runs orders through a guard; without a form for batches, one after the other."""

    def run(case: str, some: list[Order]) -> None:
        if batch is not None and case.startswith("batch"):
            batch(some)
            return
        for order in some:
            try:
                call(order)
            except Boom:
                pass

    return run


def awaited(
    runner: asyncio.Runner,
    call: Callable[[Order], Awaitable[object]],
    batch: Callable[[list[Order]], Awaitable[object]],
) -> Callable[..., None]:
    """As :func:`called`, for a guarded coroutine function."""

    async def each(some: list[Order]) -> None:
        for order in some:
            with contextlib.suppress(Boom):
                await call(order)

    async def at_once(some: list[Order]) -> None:
        await batch(some)

    return lambda case, some: runner.run(at_once(some) if case.startswith("batch") else each(some))


def guarded(once: Once) -> Peer:
    """Return onceward's guard of a function."""
    call = once(key="order.id", name="stores.handle")(handle)
    return Peer(called(call, once.batch(handle, key="order.id").run), once.close)


def guarded_async(once: Once, runner: asyncio.Runner) -> Peer:
    """Return onceward's guard of a coroutine function."""
    call = once(key="order.id", name="stores.handle")(handle_async)
    return Peer(awaited(runner, call, once.batch(handle_async, key="order.id").run_async), once.close)


def idemkit(url: str, table: str = "idemkit_records") -> Peer:
    """Return idemkit's guard of a function; it has a loop of its own in a thread, and no batches."""
    backend = PostgresBackend.from_url(url, table=table)
    call = idempotent_sync(backend=backend, config=IDEMKIT)(handle)
    return Peer(called(call), lambda: run_sync(backend.aclose()))


def idemkit_async(url: str, runner: asyncio.Runner, table: str = "idemkit_records") -> Peer:
    """Return idemkit's guard of a coroutine function; a batch is awaited all at once."""
    backend = PostgresBackend.from_url(url, table=table)
    call = idempotent(backend=backend, config=IDEMKIT)(handle_async)
    run = awaited(runner, call, lambda some: asyncio.gather(*map(call, some)))
    return Peer(run, lambda: runner.run(_made(backend.aclose)))


def raw(url: str, replay: Replay) -> Peer:
    """Return onceward's statements over psycopg."""
    connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=None)
    cursor = connection.cursor()
    return Peer(lambda case, some: drive(replay.steps(case, some), cursor), connection.close)


def raw_async(url: str, replay: Replay, runner: asyncio.Runner) -> Peer:
    """Return onceward's statements over psycopg, awaited."""
    options: dict[str, Any] = {"cursor_factory": psycopg.AsyncRawCursor, "prepare_threshold": None}
    connection = runner.run(_made(lambda: psycopg.AsyncConnection.connect(url, autocommit=True, **options)))
    cursor = connection.cursor()
    return Peer(
        lambda case, some: runner.run(drive_async(replay.steps(case, some), cursor)),
        lambda: runner.run(_made(connection.close)),
    )


def raw_asyncpg(url: str, replay: Replay, runner: asyncio.Runner) -> Peer:
    """Return onceward's statements over asyncpg."""
    connection = runner.run(_made(lambda: asyncpg.connect(url)))
    return Peer(
        lambda case, some: runner.run(drive_asyncpg(replay.steps(case, some), connection)),
        lambda: runner.run(_made(connection.close)),
    )


async def _made(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


def on_postgres(url: str, tape: dict[str, list[Statement]], runner: asyncio.Runner) -> dict[str, Peer]:
    """Return all that is measured on PostgreSQL."""
    bare = BareSocket(url, tape)
    made = (
        guarded(Once(url)),
        guarded_async(Once(url), runner),
        idemkit(url),
        idemkit_async(url, runner),
        raw(url, Replay(tape)),
        raw_async(url, Replay(tape), runner),
        raw_asyncpg(url, Replay(tape), runner),
        Peer(bare.run, bare.close),
    )
    return dict(zip(NAMES, made, strict=True))


def elsewhere(folder: Path, dynamodb: str) -> dict[str, Peer]:
    """Return onceward's guards on other ledgers: in memory, in a file, and on the server at the URL ``dynamodb``."""
    urls = (
        "memory:",
        f"sqlite:///{folder}/ledger.db",
        f"dynamodb://onceward?region={REGION}&endpoint={quote(dynamodb)}",
    )
    return dict(zip(ELSEWHERE, (guarded(Once(url)) for url in urls), strict=True))
