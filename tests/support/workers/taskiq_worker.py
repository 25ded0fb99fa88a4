"""A worker of Taskiq in a campaign, on the Redis of ``TASKIQ_BROKER``; its task's effects are those of faults/campaign_effects.py."""

import asyncio
import os

from taskiq import SmartRetryMiddleware
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from faults import campaign_effects
from onceward import Claim
from onceward.taskiq import exactly

QUEUE = "campaign"

broker = RedisStreamBroker(
    os.environ["TASKIQ_BROKER"], queue_name=QUEUE, consumer_id="0", idle_timeout=6000, xread_block=500
).with_middlewares(SmartRetryMiddleware(default_retry_count=1000, default_delay=1))


@exactly(campaign_effects.opened(), key="order.id", name="campaign")
@broker.task(task_name="handle", retry_on_error=True)
async def handle(order: dict, claim: Claim) -> None:
    await campaign_effects.handle_async(order, claim)


@broker.task(task_name="tick")
async def tick() -> None:
    """Do nothing: RedisStreamBroker looks for the messages of killed workers only after a new message."""


async def main() -> None:
    """Work until the end; a receiver ends when its broker goes away, as its process does."""
    await run_receiver_task(broker, max_async_tasks=10, run_startup=True)


if __name__ == "__main__":
    asyncio.run(main())
