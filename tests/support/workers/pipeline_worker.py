"""Runs a pipeline over lines until all of it is done: ``python pipeline_worker.py FILE``."""

import asyncio
import sys

from commands.pipeline_runs import opened
from onceward.pipelines import load


async def lines():
    """Run to the end of the lines; return what failed."""
    outcomes, pipeline = [], load(sys.argv[1])
    try:
        await opened(pipeline, outcomes.append).run_async(until_empty=True)
    finally:
        await pipeline.close()
    return [one for one in outcomes if not one.ok]


print("ready", flush=True)
for _ in range(300):
    failed = asyncio.run(lines())
    if not failed:
        sys.exit()
    print(failed[0].status, failed[0].error, file=sys.stderr)
sys.exit(1)
