"""A worker of Procrastinate in a campaign, on ``PROCRASTINATE``; its task's effects are those of faults/campaign_effects.py."""

import asyncio
import os

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy

from faults import campaign_effects
from onceward import Claim
from onceward.procrastinate import exactly

app = App(connector=PsycopgConnector(conninfo=os.environ["PROCRASTINATE"]))


@exactly(campaign_effects.opened(), key="order.id", name="campaign")
@app.task(name="handle", retry=RetryStrategy(max_attempts=1000, wait=1))
async def handle(order: dict, claim: Claim) -> None:
    await campaign_effects.handle_async(order, claim)


@app.periodic(cron="* * * * * */2")
@app.task(name="rescue", queueing_lock="rescue", pass_context=True)
async def rescue(context: JobContext, timestamp: int) -> None:
    """Let the jobs of killed workers run again."""
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=5):
        await app.job_manager.retry_job(job)


async def main() -> None:
    async with app.open_async():
        await app.run_worker_async(
            concurrency=10, fetch_job_polling_interval=0.5, update_heartbeat_interval=1, stalled_worker_timeout=5
        )


if __name__ == "__main__":
    asyncio.run(main())
