"""What the tests of FastStream on real brokers share: an application that runs until something holds, and payloads."""

import asyncio
import time

from pydantic import BaseModel

PATIENCE = 120  # seconds that something may take on a slow machine


class Order(BaseModel):
    id: str
    cents: int = 100


class Receipt(BaseModel):
    order: str
    run: int


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
