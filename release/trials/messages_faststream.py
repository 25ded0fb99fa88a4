"""A handler that gets one order twice, on FastStream's broker for tests."""

import asyncio

from faststream import AckPolicy
from faststream.nats import NatsBroker, PullSub, TestNatsBroker

from onceward import Once
from onceward.faststream import exactly

once = Once("sqlite:///faststream.db")
broker = NatsBroker("nats://127.0.0.1:1")
calls = []


@broker.subscriber("orders", stream="ORDERS", durable="shop", pull_sub=PullSub(), ack_policy=AckPolicy.NACK_ON_ERROR)
@exactly(once, key="order.id")
async def charge(order: dict) -> None:
    calls.append(order)


async def main() -> None:
    async with TestNatsBroker(broker) as test:
        for _ in range(2):
            await test.publish({"id": 1}, "orders", stream="ORDERS")
    assert len(calls) == 1


asyncio.run(main())
