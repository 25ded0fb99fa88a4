"""Client CPU of one PutItem: onceward's own wires, which sign and read it, beside libraries that send constant bytes."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp
import urllib3

from dynamodb_limit import ITEM, REGION, Limit, presigned
from measure import Cost, interleaved, table, timed
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.wire.calls import Call
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints
from onceward.wire.nonblocking import AsyncHttpWire
from onceward.wire.sockets import HttpWire

REQUESTS, ROUNDS, TASKS = 500, 7, 64
CALL = Call(
    DYNAMODB, "PutItem", {"TableName": "onceward", "Item": ITEM, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
)


def wires(url: str) -> None:
    """Print the table."""
    limit = Limit(url, "onceward")
    _, headers, body = presigned(url, "onceward")
    sync = HttpWire(Endpoints(REGION, dynamodb=url), CredentialSource())
    pool = urllib3.PoolManager()

    def repeated(ask: Callable[[], object]) -> Callable[[int], Cost]:
        return lambda _: timed(lambda: [ask() for _ in range(REQUESTS)], REQUESTS)

    costs = interleaved(
        {
            "onceward, signed": repeated(lambda: sync.send(CALL, time.time())),
            "http.client, constant": repeated(limit.ask_http_client),
            "urllib3, constant": repeated(lambda: pool.request("POST", url, body=body, headers=headers).data),
        },
        ROUNDS,
    )
    with asyncio.Runner() as runner:
        session = runner.run(_session())
        own = AsyncHttpWire(Endpoints(REGION, dynamodb=url), CredentialSource())

        async def ask_aiohttp() -> None:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()

        def together(ask: Callable[[], Awaitable[object]]) -> Callable[[int], Cost]:
            return lambda _: runner.run(_together(ask))

        costs |= interleaved(
            {
                f"onceward async, signed, {TASKS} tasks": together(lambda: own.send(CALL, time.time())),
                f"aiohttp, constant, {TASKS} tasks": together(ask_aiohttp),
            },
            ROUNDS,
        )
        runner.run(session.close())
        own.close()
    sync.close()
    table(
        f"the wire alone, one PutItem: µs, {REQUESTS} requests, median of {ROUNDS} interleaved rounds",
        ["", "CPU", "wall"],
        [(name, cost.cpu, cost.wall) for name, cost in costs.items()],
    )


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=TASKS))


async def _together(ask: Callable[[], Awaitable[object]]) -> Cost:
    pending = iter(range(REQUESTS))

    async def work() -> None:
        for _ in pending:
            await ask()

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(cpu / REQUESTS * 1e6, wall / REQUESTS * 1e6)
