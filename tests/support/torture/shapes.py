"""The ways to deliver a key. Each is written once, as a coroutine; in the blocking form it calls what blocks, and never waits."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from onceward import StepMade, current
from onceward.claim.claim import Claim
from torture.plan import MANY

EFFECTS = "effects"  # the table of effects that commit with their record
STEP_NAMES = ("one", "large", "last")


def deliver(actor: Any, keys: list[str]) -> None:
    is_async = actor.plan.shape.endswith("_async")
    shape, form = actor.plan.shape.removesuffix("_async"), Form(actor, is_async=is_async)

    async def main() -> None:
        actor.task = asyncio.current_task() if is_async else None
        try:
            if shape in MANY:
                await WAYS[shape](form, keys)
                return
            (key,) = keys
            done = form.run(key, HANDLERS[shape]) if shape in HANDLERS else WAYS[shape](form, key)
            actor.tell(key, await done)
        finally:
            actor.task = None

    asyncio.run(main()) if is_async else driven(main())


def driven(coroutine: Coroutine) -> Any:
    """Return what a coroutine returns that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Form:
    """One of the two forms in which an actor uses onceward."""

    def __init__(self, actor: Any, *, is_async: bool) -> None:
        self.actor, self.once, self.is_async = actor, actor.once, is_async

    async def call(self, of: object, name: str, *arguments: object) -> Any:
        done = getattr(of, f"{name}_async" if self.is_async else name)(*arguments)
        return await done if self.is_async else done

    async def run(self, key: str, handler: Callable[..., Coroutine]) -> str:
        return await self.call(self.once, "run", key, self.handler(handler), self, key)

    def handler(self, function: Callable[..., Coroutine]) -> Callable:
        if self.is_async:
            return function
        return lambda *given: driven(function(*given))

    async def nap(self, place: int) -> None:
        seconds = self.actor.delivery.naps[place]
        if self.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    @asynccontextmanager
    async def within(self, block: Any) -> AsyncIterator[Any]:
        if self.is_async:
            async with block as held:
                yield held
        else:
            with block as held:
                yield held

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        if self.is_async:
            async with self.actor.hand.awaited() as connection:
                yield connection
        else:
            yield self.actor.hand.connection()

    async def insert(self, connection: Any, key: str, run: str) -> None:
        """Make an effect on a connection. There is no parent 2, which the database finds out at the COMMIT."""
        actor = self.actor
        parent = 2 if actor.delivery.steps.get("before") == "commit-fails" and "before" in actor.acting else 1
        actor.acting.discard("before")
        made = connection.execute(f"INSERT INTO {EFFECTS} VALUES {actor.hand.marks}", (key, run, parent))
        if self.is_async:
            await made


async def handle(form: Form, key: str, claim: Claim | None, body: Callable[[str], Awaitable[str | None]]) -> str:
    """Run the body of a handler; return what it returns, or the name of its run."""
    actor = form.actor
    run = actor.enter(key, claim)
    try:
        value = await body(run)
    except BaseException as error:
        actor.raised(run, key, error)
        raise
    left = actor.leave(run, key)
    return left if value is None else value


async def plain(form: Form, key: str, claim: Claim, effect: Callable[[str], Awaitable[None]] | None = None) -> str:
    """Make the effect of ``key``, with naps and whatever the plan says before and after it."""
    actor = form.actor

    async def body(run: str) -> None:
        actor.step("before")
        await form.nap(0)
        actor.effect(run, key) if effect is None else await effect(run)
        actor.step("after")
        await form.nap(1)

    return await handle(form, key, claim, body)


# --- single calls -------------------------------------------------------------------------------------------------


async def run(form: Form, key: str) -> str:
    return await plain(form, key, current())


async def claim(form: Form, key: str) -> str:
    async with form.within(form.once.claim(key)) as held:
        value = await plain(form, key, held)
        await form.call(held, "complete", value)
    return value


async def steps(form: Form, key: str) -> str:
    actor, held = form.actor, current()

    async def body(run: str) -> None:
        for name in STEP_NAMES:
            actor.points.phase = "settle"
            value = await form.call(held, "step", name, _made, actor, key, run, name)
            actor.points.phase = None
            actor.journal("got-step", run=run, key=key, step=name, value=value.rstrip("x"))
        actor.effect(run, key)

    return await handle(form, key, held, body)


def _made(actor: Any, key: str, run: str, name: str) -> str:
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


async def batch(form: Form, keys: list[str]) -> None:
    actor = form.actor

    async def handle_one(key: str) -> str:
        actor.points.phase = None
        return await plain(form, key, current())

    def blocking(key: str) -> str:
        return driven(handle_one(key))

    handler, more = (handle_one, {"concurrency": 2}) if form.is_async else (blocking, {})
    for outcome in await form.call(form.once.batch(handler, key="key", **more), "run", keys):
        if outcome.ok and outcome.error is None:
            actor.tell(outcome.record, outcome.value)
        elif outcome.status == "deferred":
            actor.journal("deferred", key=outcome.record, call=actor.call)
            actor.wait = 0.05
        else:
            actor.tell(outcome.record, error=outcome.error)


async def transaction(form: Form, key: str) -> str:
    async with form.connection() as connection:
        async with form.within(form.once.transaction(key, connection)) as tx:
            effect = lambda run: form.insert(connection, key, run)
            value = tx.result = await plain(form, key, tx.claim, effect)
        return value


async def claim_transaction(form: Form, key: str) -> str:
    actor, held = form.actor, current()

    async def body(run: str) -> None:
        await form.nap(0)
        async with form.connection() as connection:
            actor.points.phase = "settle"
            async with form.within(held.transaction(connection)) as tx:
                actor.step("before")
                await form.insert(connection, key, run)
                actor.step("after")
                tx.result = f"{key}/{run}"

    return await handle(form, key, held, body)


async def step_transaction(form: Form, key: str) -> str:
    actor, held = form.actor, current()

    async def body(run: str) -> str:
        await form.nap(0)
        async with form.connection() as connection:
            actor.points.phase = "settle"
            stock = held.step_transaction("stock", connection)
            with suppress(StepMade):
                async with form.within(stock):
                    actor.step("before")
                    await form.insert(connection, key, run)
                    actor.step("after")
                    stock.result = f"{key}/{run}"
        return str(stock.result)

    return await handle(form, key, held, body)


# What a handler does, of `once.run`; and the ways that call no handler themselves.
HANDLERS = {"run": run, "steps": steps}
HANDLERS |= {"claim_transaction": claim_transaction, "step_transaction": step_transaction}
WAYS = {"claim": claim, "batch": batch, "transaction": transaction}
