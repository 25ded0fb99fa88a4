"""A task that gets one order twice, on Taskiq's broker in memory."""

import asyncio

from taskiq import InMemoryBroker

from onceward import Once
from onceward.taskiq import exactly

broker = InMemoryBroker()
once = Once("sqlite:///taskiq.db")
calls = []


@exactly(once, key="order.id", name="refund")
@broker.task
async def refund(order: dict) -> str:
    calls.append(order)
    return f"refunded {order['id']}"


async def main() -> None:
    await broker.startup()
    results = [await (await refund.kiq({"id": 1})).wait_result(timeout=30) for _ in range(2)]
    await broker.shutdown()
    assert [one.return_value for one in results] == ["refunded 1"] * 2
    assert len(calls) == 1


asyncio.run(main())
