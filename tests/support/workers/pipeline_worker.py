"""Runs a pipeline until SIGTERM: ``python pipeline_worker.py FILE``. It says where a webhook listens."""

import asyncio
import signal
import sys

from onceward.pipelines import load
from onceward.pipelines.pipeline import PipelineRun


async def main() -> None:
    runs = PipelineRun(load(sys.argv[1]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runs.stop)
    run = asyncio.create_task(runs.run_async())
    source = runs._runs
    while hasattr(source, "port") and not (source.port or run.done()):
        await asyncio.sleep(0.01)
    print(getattr(source, "port", "runs"), flush=True)
    await run


asyncio.run(main())
