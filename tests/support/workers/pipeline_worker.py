"""Runs a pipeline until SIGTERM: ``python pipeline_worker.py FILE``. It says where a webhook listens. With ``lines``, until all is done."""

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


async def lines():
    """Run to the end of the lines; return what failed."""
    from commands.pipeline_runs import opened

    outcomes, pipeline = [], load(sys.argv[1])
    try:
        await opened(pipeline, outcomes.append).run_async(until_empty=True)
    finally:
        await pipeline.close()
    return [one for one in outcomes if not one.ok]


if sys.argv[2:] == ["lines"]:
    print("ready", flush=True)
    for _ in range(300):
        failed = asyncio.run(lines())
        if not failed:
            sys.exit()
        print(failed[0].status, failed[0].error, file=sys.stderr)
    sys.exit(1)
asyncio.run(main())
