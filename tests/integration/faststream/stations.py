"""What the tests of FastStream on real brokers share: an application that runs until something holds, and payloads."""

import asyncio
import time
import uuid

from faststream import AckPolicy
from pydantic import BaseModel

from onceward.faststream import exactly

NACK = AckPolicy.NACK_ON_ERROR
PATIENCE = 120  # seconds that something may take on a slow machine


class Order(BaseModel):
    id: str
    cents: int = 100


class Receipt(BaseModel):
    order: str
    run: int


class Station:
    """A queue of its own on a server, and a broker of FastStream."""

    def __init__(self, broker):
        self.name, self.broker = f"s{uuid.uuid4().hex[:8]}", broker
        self.orders, self.paid = f"{self.name}.orders", f"{self.name}.paid"
        self.dead = f"{self.orders}.onceward-dead"

    async def __aenter__(self):
        await self.broker.start()
        return self

    async def __aexit__(self, *_):
        await self.broker.stop()


async def until(holds, patience=PATIENCE):
    """Wait until something holds; what it checks may be awaited."""
    limit = time.monotonic() + patience
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < limit, "it never came"
        await asyncio.sleep(0.05)


def charging(shop, once, refuses=lambda runs: False, queue=None, **options):
    """Subscribe a guarded handler, which raises if ``refuses`` says so of the ids that it ran for; return these."""
    runs = []

    @shop.subscriber(**(queue or {}))
    @exactly(once, key="order.id", name="charge", **options)
    async def charge(order: Order) -> None:
        runs.append(order.id)
        if refuses(runs):
            raise ConnectionError("the bank is away")

    return runs


def is_poison(runs):
    return runs[-1] == "poison"


def handled(shop, *orders, end):
    """Publish these while the application runs; return what ``end`` gives when it holds."""

    async def main():
        async with shop:
            await shop.publish(*orders)
            return await until(end)

    return asyncio.run(main())


def numbered(count):
    return [Order(id=f"{number}") for number in range(count)]
