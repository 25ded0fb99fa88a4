"""Pipelines of tests: written, run, and killed."""

import asyncio
import json
import random
import time

from faults.processes import PATIENCE, workers
from onceward.pipelines import load


def opened(pipeline, report=None):
    """Return what brings deliveries from a pipeline's own source, without opening what its steps and sinks need."""
    return pipeline.source.open(pipeline.flow(report))


def written(folder, ledger, parts, messages):
    """Write a pipeline that reads messages from lines; return its file."""
    folder.joinpath("in.ndjson").write_text("".join(f"{json.dumps(one)}\n" for one in messages))
    file = folder / "pipeline.yaml"
    head = (
        f"name: p\nledger: {ledger}\nsource:\n  ndjson: {{files: [in.ndjson]}}\nguard: {{key: message.id, lease: 3s}}\n"
    )
    file.write_text(head + parts)
    return file


def run(file):
    outcomes = []

    async def main():
        pipeline = load(file)
        try:
            await opened(pipeline, outcomes.append).run_async(until_empty=True)
        finally:
            await pipeline.close()

    asyncio.run(main())
    return outcomes


def storm(file):
    """Run it in processes that are killed at any moment, and a last time to its end."""
    with workers("worker.py") as start:
        for number in range(6):
            process = start("pipeline", file)
            assert process.stdout.readline() == "ready\n"
            time.sleep(random.uniform(0.05, 0.1 + number / 10))
            process.kill()
            process.wait(PATIENCE)
        last = start("pipeline", file)
        assert last.wait(PATIENCE * 3) == 0
