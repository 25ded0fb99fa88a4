"""The ways to deliver a key: each is told of by ``actor.tell``, and its handler is one of the two here."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from onceward import Busy, Completed, StepMade, current
from onceward.claim.claim import Claim
from torture.messages import offer
from torture.strikes import ChildReturns

if TYPE_CHECKING:
    from torture.actor import Actor

EFFECTS = "effects"  # the table of effects that commit with their record


@contextmanager
def _run_of(actor: "Actor", key: str, claim: Claim | None) -> Iterator[str]:
    run = actor.enter(key, claim)
    try:
        yield run
    except BaseException as error:
        actor.raised(run, key, error)
        raise


def handle(actor: "Actor", key: str, claim: Claim | None, effect: Callable[[str], object] | None = None) -> str:
    """Make the effect of ``key``, with naps and whatever the plan says before and after it."""
    try:
        with _run_of(actor, key, claim) as run:
            actor.step("before")
            time.sleep(actor.delivery.naps[0])
            actor.look(run, claim)
            actor.effect(run, key) if effect is None else effect(run)
            actor.step("after")
            time.sleep(actor.delivery.naps[1])
            actor.look(run, claim)
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    return actor.leave(run, key)


async def handle_async(
    actor: "Actor", key: str, claim: Claim | None, effect: Callable[[str], Awaitable[object]] | None = None
) -> str:
    """As ``handle``, for a coroutine."""
    try:
        with _run_of(actor, key, claim) as run:
            actor.step("before")
            await asyncio.sleep(actor.delivery.naps[0])
            actor.look(run, claim)
            actor.effect(run, key) if effect is None else await effect(run)
            actor.step("after")
            await asyncio.sleep(actor.delivery.naps[1])
            actor.look(run, claim)
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    return actor.leave(run, key)


# --- single calls -------------------------------------------------------------------------------------------------


def run(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    actor.tell(key, actor.once.run(key, _handler, actor, key))


def _handler(actor: "Actor", key: str) -> str:
    return handle(actor, key, current())


def run_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    _awaited(actor, key, lambda: actor.once.run_async(key, _handler_async, actor, key))


async def _handler_async(actor: "Actor", key: str) -> str:
    return await handle_async(actor, key, current())


def claim(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    with actor.once.claim(key) as held:
        value = handle(actor, key, held)
        held.complete(value)
    actor.tell(key, value)


def claim_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys

    async def block() -> str:
        async with actor.once.claim(key) as held:
            value = await handle_async(actor, key, held)
            await held.complete_async(value)
        return value

    _awaited(actor, key, block)


def _awaited(actor: "Actor", key: str, make: Callable) -> None:
    async def main() -> None:
        actor.task = asyncio.current_task()
        try:
            actor.tell(key, await make())
        finally:
            actor.task = None

    asyncio.run(main())


# --- handlers with steps ----------------------------------------------------------------------------------------

STEP_NAMES = ("one", "large", "last")


def _made(actor: "Actor", key: str, run: str, name: str) -> str:
    """Make a step. What the plan says of a handler happens in its second one."""
    actor.points.phase = None
    if name == "large":
        actor.step("before")
        time.sleep(actor.delivery.naps[0])
    actor.journal("made-step", run=run, key=key, step=name)
    if name == "large":
        actor.step("after")
        time.sleep(actor.delivery.naps[1])
    actor.points.phase = "settle"
    return f"{key}/{name}/{run}/".ljust(17_000 if name == "large" else 0, "x")


def _got(actor: "Actor", key: str, run: str, name: str, value: str) -> None:
    actor.points.phase = None
    actor.journal("got-step", run=run, key=key, step=name, value=value.rstrip("x"))


def steps(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    actor.tell(key, actor.once.run(key, _stepping, actor, key))


def _stepping(actor: "Actor", key: str) -> str:
    held = current()
    try:
        with _run_of(actor, key, held) as run:
            for name in STEP_NAMES:
                actor.look(run, held)
                actor.points.phase = "settle"
                value = held.step(name, _made, actor, key, run, name)
                _got(actor, key, run, name, value)
            actor.effect(run, key)
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    return actor.leave(run, key)


def steps_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    _awaited(actor, key, lambda: actor.once.run_async(key, _stepping_async, actor, key))


async def _stepping_async(actor: "Actor", key: str) -> str:
    held = current()
    try:
        with _run_of(actor, key, held) as run:
            for name in STEP_NAMES:
                actor.look(run, held)
                actor.points.phase = "settle"
                value = await held.step_async(name, _made, actor, key, run, name)
                _got(actor, key, run, name, value)
            actor.effect(run, key)
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    return actor.leave(run, key)


# --- handlers that send ------------------------------------------------------------------------------------------


def messages(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    actor.tell(key, actor.once.run(key, _sending, actor, key))


def _sending(actor: "Actor", key: str) -> str:
    held = current()
    return handle(actor, key, held, lambda run: _effect_and_messages(actor, key, run, held))


def messages_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    _awaited(actor, key, lambda: actor.once.run_async(key, _sending_async, actor, key))


async def _sending_async(actor: "Actor", key: str) -> str:
    held = current()

    async def effect(run: str) -> None:
        _effect_and_messages(actor, key, run, held)

    return await handle_async(actor, key, held, effect)


def _effect_and_messages(actor: "Actor", key: str, run: str, held: Claim) -> None:
    offer(actor, key, run, held, 1)
    actor.effect(run, key)
    offer(actor, key, run, held, 2)


# --- many at once -------------------------------------------------------------------------------------------------


def _current(actor: "Actor") -> Claim:
    """Return the claim of the handler. A strike in between would be one in the handler: its fork would make the effect, too."""
    actor.points.phase = None
    return current()


def batch(actor: "Actor", keys: list[str]) -> None:
    def handler(key: str) -> str:
        return handle(actor, key, _current(actor))

    _tell_outcomes(actor, actor.once.batch(handler, key="key").run(keys))


def batch_async(actor: "Actor", keys: list[str]) -> None:
    async def handler(key: str) -> str:
        return await handle_async(actor, key, _current(actor))

    async def main() -> list:
        actor.task = asyncio.current_task()
        try:
            return await actor.once.batch(handler, key="key", concurrency=2).run_async(keys)
        finally:
            actor.task = None

    _tell_outcomes(actor, asyncio.run(main()))


def _tell_outcomes(actor: "Actor", outcomes: list) -> None:
    for outcome in outcomes:
        if outcome.ok and outcome.error is None:
            actor.tell(outcome.record, outcome.value)
        elif outcome.status == "deferred":
            actor.journal("deferred", key=outcome.record, call=actor.call)
            actor.wait = 0.05
        else:
            actor.tell(outcome.record, error=outcome.error)


def _flushed(actor: "Actor", items: list[str]) -> list[str]:
    return [actor.enter(key, None) for key in items]


def checkpoint(actor: "Actor", keys: list[str]) -> None:
    def flush(items: list[str]) -> None:
        runs = _flushed(actor, items)
        try:
            actor.step("before")
            time.sleep(actor.delivery.naps[0])
            for key, name in zip(items, runs, strict=True):
                actor.effect(name, key)
            actor.step("after")
            time.sleep(actor.delivery.naps[1])
        except ChildReturns:
            return
        except BaseException as error:
            for key, name in zip(items, runs, strict=True):
                actor.raised(name, key, error)
            raise
        for key, name in zip(items, runs, strict=True):
            actor.leave(name, key)

    def done(items: list[str]) -> None:
        for key in items:
            actor.journal("acknowledged", key=key, call=actor.call)

    with actor.once.checkpoint(flush, key="item", count=2, on_done=done) as sink:
        for key in keys:
            try:
                if sink.add(key) == "replayed":
                    actor.tell(key, None)
            except Busy as busy:
                actor.tell(key, error=busy)
    for key in keys:
        actor.tell(key, None)


def checkpoint_async(actor: "Actor", keys: list[str]) -> None:
    async def flush(items: list[str]) -> None:
        runs = _flushed(actor, items)
        try:
            actor.step("before")
            await asyncio.sleep(actor.delivery.naps[0])
            for key, name in zip(items, runs, strict=True):
                actor.effect(name, key)
            actor.step("after")
            await asyncio.sleep(actor.delivery.naps[1])
        except ChildReturns:
            return
        except BaseException as error:
            for key, name in zip(items, runs, strict=True):
                actor.raised(name, key, error)
            raise
        for key, name in zip(items, runs, strict=True):
            actor.leave(name, key)

    def done(items: list[str]) -> None:
        for key in items:
            actor.journal("acknowledged", key=key, call=actor.call)

    async def main() -> None:
        actor.task = asyncio.current_task()
        try:
            async with actor.once.checkpoint(flush, key="item", count=2, on_done=done) as sink:
                for key in keys:
                    try:
                        if await sink.add(key) == "replayed":
                            actor.tell(key, None)
                    except Busy as busy:
                        actor.tell(key, error=busy)
        finally:
            actor.task = None

    asyncio.run(main())
    for key in keys:
        actor.tell(key, None)


# --- effects that commit with their record ------------------------------------------------------------------------


def _insert(actor: "Actor", key: str, connection: object) -> Callable[[str], object]:
    parent = 2 if actor.delivery.steps.get("before") == "commit-fails" and "before" in actor.acting else 1

    def insert(run: str) -> object:
        actor.acting.discard("before")
        # There is no parent 2, which the database finds out at the COMMIT.
        return connection.execute(f"INSERT INTO {EFFECTS} VALUES {actor.hand.marks}", (key, run, parent))

    return insert


def transaction(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    connection = actor.hand.connection()
    with actor.once.transaction(key, connection) as tx:
        value = tx.result = handle(actor, key, tx.claim, _insert(actor, key, connection))
    actor.tell(key, value)


def transaction_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys

    async def block() -> str:
        async with actor.hand.awaited() as connection:
            async with actor.once.transaction(key, connection) as tx:
                value = tx.result = await handle_async(actor, key, tx.claim, _insert(actor, key, connection))
            return value

    _awaited(actor, key, block)


def claim_transaction(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    actor.tell(key, actor.once.run(key, _claim_transaction, actor, key))


def _claim_transaction(actor: "Actor", key: str) -> str:
    held = current()
    run = actor.enter(key, held)
    try:
        time.sleep(actor.delivery.naps[0])
        actor.look(run, held)
        actor.points.phase = "settle"
        connection = actor.hand.connection()
        with held.transaction(connection) as tx:
            actor.step("before")
            offer(actor, key, run, held, 1)
            _insert(actor, key, connection)(run)
            offer(actor, key, run, held, 2)
            actor.step("after")
            tx.result = f"{key}/{run}"
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    return actor.leave(run, key)


def claim_transaction_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    _awaited(actor, key, lambda: actor.once.run_async(key, _claim_transaction_async, actor, key))


async def _claim_transaction_async(actor: "Actor", key: str) -> str:
    held = current()
    run = actor.enter(key, held)
    try:
        await asyncio.sleep(actor.delivery.naps[0])
        actor.look(run, held)
        async with actor.hand.awaited() as connection:
            actor.points.phase = "settle"
            async with held.transaction(connection) as tx:
                actor.step("before")
                offer(actor, key, run, held, 1)
                await _insert(actor, key, connection)(run)
                offer(actor, key, run, held, 2)
                actor.step("after")
                tx.result = f"{key}/{run}"
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    return actor.leave(run, key)


def messages_transaction(actor: "Actor", keys: list[str]) -> None:
    claim_transaction(actor, keys)


def messages_transaction_async(actor: "Actor", keys: list[str]) -> None:
    claim_transaction_async(actor, keys)


def step_transaction(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    actor.tell(key, actor.once.run(key, _step_transaction, actor, key))


def _step_transaction(actor: "Actor", key: str) -> str:
    held = current()
    run = actor.enter(key, held)
    try:
        time.sleep(actor.delivery.naps[0])
        actor.look(run, held)
        actor.points.phase = "settle"
        connection = actor.hand.connection()
        stock = held.step_transaction("stock", connection)
        with suppress(StepMade), stock:
            actor.step("before")
            _insert(actor, key, connection)(run)
            actor.step("after")
            stock.result = f"{key}/{run}"
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    actor.leave(run, key)
    return str(stock.result)


def step_transaction_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    _awaited(actor, key, lambda: actor.once.run_async(key, _step_transaction_async, actor, key))


async def _step_transaction_async(actor: "Actor", key: str) -> str:
    held = current()
    run = actor.enter(key, held)
    try:
        await asyncio.sleep(actor.delivery.naps[0])
        actor.look(run, held)
        async with actor.hand.awaited() as connection:
            actor.points.phase = "settle"
            stock = held.step_transaction("stock", connection)
            with suppress(StepMade):
                async with stock:
                    actor.step("before")
                    await _insert(actor, key, connection)(run)
                    actor.step("after")
                    stock.result = f"{key}/{run}"
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    actor.leave(run, key)
    return str(stock.result)


def _write(key: str, run: str) -> list[dict]:
    update = {
        "TableName": os.environ["TORTURE_EFFECTS"],
        "Key": {"key": {"S": key}},
        "UpdateExpression": "ADD n :one SET run = :run",
        "ExpressionAttributeValues": {":one": {"N": "1"}, ":run": {"S": run}},
    }
    return [{"Update": update}]


def transact(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    run = actor.enter(key, None)
    actor.points.phase = "call"
    actor.tell(key, actor.once.transact(key, _write(key, run), f"{key}/{run}"))


def transact_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    run = actor.enter(key, None)
    actor.points.phase = "call"
    _awaited(actor, key, lambda: actor.once.transact_async(key, _write(key, run), f"{key}/{run}"))


def claim_transact(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    actor.tell(key, actor.once.run(key, _claim_transact, actor, key))


def _claim_transact(actor: "Actor", key: str) -> str:
    held = current()
    run = actor.enter(key, held)
    try:
        actor.step("before")
        time.sleep(actor.delivery.naps[0])
        actor.look(run, held)
        actor.points.phase = "settle"
        value = held.transact(_write(key, run), f"{key}/{run}")
        actor.step("after")
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    actor.leave(run, key)
    return value


def claim_transact_async(actor: "Actor", keys: list[str]) -> None:
    (key,) = keys
    _awaited(actor, key, lambda: actor.once.run_async(key, _claim_transact_async, actor, key))


async def _claim_transact_async(actor: "Actor", key: str) -> str:
    held = current()
    run = actor.enter(key, held)
    try:
        actor.step("before")
        await asyncio.sleep(actor.delivery.naps[0])
        actor.look(run, held)
        actor.points.phase = "settle"
        value = await held.transact_async(_write(key, run), f"{key}/{run}")
        actor.step("after")
    except ChildReturns:
        return f"{key}/child-{os.getpid()}"
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    actor.leave(run, key)
    return value


def completed(shape: Callable) -> Callable:
    """Tell of a claim that is completed already as of its result."""

    def deliver(actor: "Actor", keys: list[str]) -> None:
        try:
            shape(actor, keys)
        except Completed as done:
            actor.tell(keys[0], done.result)

    return deliver


SHAPES = {
    one.__name__: completed(one)
    if one.__name__ in {"claim", "claim_async", "transaction", "transaction_async"}
    else one
    for one in (
        run,
        run_async,
        claim,
        claim_async,
        steps,
        steps_async,
        messages,
        messages_async,
        batch,
        batch_async,
        checkpoint,
        checkpoint_async,
        transaction,
        transaction_async,
        claim_transaction,
        claim_transaction_async,
        step_transaction,
        step_transaction_async,
        messages_transaction,
        messages_transaction_async,
        transact,
        transact_async,
        claim_transact,
        claim_transact_async,
    )
}
