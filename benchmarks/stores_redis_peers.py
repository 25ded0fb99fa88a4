"""Guards of one handler on Redis: onceward's, idemkit's, Powertools', what a careful user writes, and onceward's commands without onceward.

The last ones are taken down while a guard runs, so they are always those that it sends. Only keys and fences are put in their place.
"""

import asyncio
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import redis
import redis.asyncio
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from idemkit import RedisBackend, idempotent, idempotent_sync
from idemkit.core.sync_bridge import run_sync

from dynamodb_peers import Context
from onceward import Once
from onceward.stores import open_store
from onceward.stores.redis.requests import RoundTrip
from postgres_replay import CASES, FAILING, FIRST, NAME, Boom, Order, handle, orders
from stores_peers import IDEMKIT, Peer, awaited, called, guarded, guarded_async, handle_async

ONCEWARD, ASYNC, RAW, RAW_ASYNC, PEER, PEER_ASYNC, POWERTOOLS, CAREFUL, EVALSHA = (
    "onceward",
    "onceward, async",
    "redis-py, the same commands",
    "redis-py, async, the same commands",
    "idemkit",
    "idemkit, async",
    "Powertools",
    "redis-py, SET NX GET and a script",
    "redis-py, EVALSHA of return 1",
)
UNDER = {ONCEWARD: RAW, ASYNC: RAW_ASYNC, PEER: RAW, PEER_ASYNC: RAW_ASYNC, POWERTOOLS: RAW}
THEIRS = (PEER, PEER_ASYNC, POWERTOOLS, CAREFUL)
# What a careful user writes: only who holds the key records its result.
SETTLE = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) return 1"
_FENCE = re.compile(rb"\xb0(\d{16})")  # the first text of 16 characters in an answer
Tape = dict[str, list[list[list[Any]]]]  # the round trips of a case, and their commands


def recorded(url: str, batch: int) -> Tape:
    """Return what onceward sends in each case."""
    store = open_store(url)
    run, heard = store.conduit.run, []

    def listen(request: RoundTrip) -> list[Any]:
        heard.append([call.command() for call in request.calls])
        return run(request)

    once, tape = Once(store), {}
    once.run("warm", handle, {})
    call = once(key="order.id", name="stores.handle")(handle)
    batches = once.batch(handle, key="order.id")
    some = orders(NAME, batch)
    failing = {"id": FAILING}
    acts = (
        lambda: call({"id": FIRST}),
        lambda: call({"id": FIRST}),
        lambda: called(call)("", [failing | {"fail": "yes"}]),
        lambda: call(failing),
        lambda: batches.run(some),
        lambda: batches.run(some),
    )
    store.conduit.run = listen
    for case, act in zip(CASES, acts, strict=True):
        heard.clear()
        act()
        tape[case] = list(heard)
    store.close()
    return tape


def _replayed(tape: Tape, case: str, some: list[Order]) -> Iterator[list[list[Any]]]:
    """Yield the commands of each round trip, and be sent the answers."""
    if case.startswith("batch"):
        was, now = f"{NAME}-".encode(), some[0]["id"][: len(NAME) + 1].encode()
        yield from _trips(tape[case], was, now)
        return
    was = (FAILING if case in {"failed call", "its retry"} else FIRST).encode()
    for order in some:
        yield from _trips(tape[case], was, order["id"].encode())


def _trips(trips: list[list[list[Any]]], was: bytes, now: bytes) -> Iterator[list[list[Any]]]:
    fences: list[bytes] = []
    for trip in trips:
        commands = [
            [*command[:3], *(part.replace(was, now) for part in command[3:6]), *command[6:]] for command in trip
        ]
        for number, command in enumerate(commands):
            command[-1] = command[-1].replace(was, now)
            if fences:  # the second trip writes what the first one has claimed
                seen = _FENCE.findall(command[-1])
                command[-1] = command[-1].replace(seen[0], fences[number]) if seen else command[-1]
        answers = yield commands
        fences = [found[1] if (found := _FENCE.search(answer)) else b"" for answer in answers]


def raw(port: int, tape: Tape) -> Peer:
    """Return onceward's commands over redis-py."""
    client = redis.Redis(port=port, protocol=2)

    def run(case: str, some: list[Order]) -> None:
        steps = _replayed(tape, case, some)
        commands = next(steps, None)
        while commands is not None:
            if len(commands) == 1:
                answers = [client.execute_command(*commands[0])]
            else:
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                answers = pipeline.execute()
            commands = _next(steps, answers)

    return Peer(run, client.close)


def raw_async(port: int, tape: Tape, runner: asyncio.Runner) -> Peer:
    """As :func:`raw`, awaited."""
    client = redis.asyncio.Redis(port=port, protocol=2)

    async def run(case: str, some: list[Order]) -> None:
        steps = _replayed(tape, case, some)
        commands = next(steps, None)
        while commands is not None:
            if len(commands) == 1:
                answers = [await client.execute_command(*commands[0])]
            else:
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                answers = await pipeline.execute()
            commands = _next(steps, answers)

    return Peer(lambda case, some: runner.run(run(case, some)), lambda: runner.run(client.aclose()))


def _next(steps: Any, answers: list[Any]) -> list[list[Any]] | None:
    try:
        return steps.send(answers)
    except StopIteration:
        return None


def idemkit(url: str) -> Peer:
    """Return idemkit's guard of a function; it has a loop of its own in a thread, and no batches."""
    backend = RedisBackend.from_url(url)
    return Peer(called(idempotent_sync(backend=backend, config=IDEMKIT)(handle)), lambda: run_sync(backend.aclose()))


def idemkit_async(url: str, runner: asyncio.Runner) -> Peer:
    """Return idemkit's guard of a coroutine function; a batch is awaited all at once."""
    backend = RedisBackend.from_url(url)
    call = idempotent(backend=backend, config=IDEMKIT)(handle_async)
    run = awaited(runner, call, lambda some: asyncio.gather(*map(call, some)))
    return Peer(run, lambda: runner.run(backend.aclose()))


def powertools_call(port: int) -> Callable[[Order], object]:
    """Return Powertools' guard of a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = CachePersistenceLayer(client=redis.Redis(port=port, decode_responses=True))
        config = IdempotencyConfig(event_key_jmespath="id", lambda_context=Context())
        call = idempotent_function(handle, data_keyword_argument="order", persistence_store=layer, config=config)
    return lambda order: call(order=order)


def careful_call(port: int) -> Callable[[Order], object]:
    """Return what a careful user writes: a claim that tells of an earlier result, and a result that only its owner writes."""
    client = redis.Redis(port=port, protocol=2)
    settle = client.register_script(SETTLE)

    def call(order: Order) -> object:
        held = client.set(f"careful:{order['id']}", "claimed", nx=True, get=True, ex=60)
        if held is not None and held != b"claimed":
            return held
        try:
            done = handle(order)
        except Boom:
            client.delete(f"careful:{order['id']}")
            raise
        settle(keys=[f"careful:{order['id']}"], args=["claimed", str(done), 86400])
        return done

    return call


def trivial(port: int) -> Peer:
    """Return one call of a script that does nothing, for each order."""
    client = redis.Redis(port=port, protocol=2)
    sha = client.script_load("return 1")

    def run(_: str, some: list[Order]) -> None:
        for order in some:
            client.evalsha(sha, 1, order["id"])

    return Peer(run, client.close)


def on_redis(port: int, tape: Tape, runner: asyncio.Runner) -> dict[str, Peer]:
    """Return all that is measured."""
    url = f"redis://127.0.0.1:{port}/0"
    return {
        ONCEWARD: guarded(Once(url)),
        ASYNC: guarded_async(Once(url), runner),
        RAW: raw(port, tape),
        RAW_ASYNC: raw_async(port, tape, runner),
        PEER: idemkit(url),
        PEER_ASYNC: idemkit_async(url, runner),
        POWERTOOLS: Peer(called(powertools_call(port))),
        CAREFUL: Peer(called(careful_call(port))),
        EVALSHA: trivial(port),
    }
