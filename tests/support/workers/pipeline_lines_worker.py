"""Runs a pipeline of lines until all its messages are done: ``python pipeline_lines_worker.py FILE``."""

import asyncio
import sys

from commands.pipeline_runs import opened
from onceward.pipelines import load


async def run(file):
    outcomes = []
    pipeline = load(file)
    try:
        await opened(pipeline, outcomes.append).run_async(until_empty=True)
    finally:
        await pipeline.close()
    return [one for one in outcomes if not one.ok]


print("ready", flush=True)
for _ in range(300):
    failed = asyncio.run(run(sys.argv[1]))
    if not failed:
        break
    print(failed[0].status, failed[0].error, file=sys.stderr)
else:
    sys.exit(1)
