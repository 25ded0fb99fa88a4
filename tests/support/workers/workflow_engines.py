"""Runs the page on workflow engines: PAGE FOLDER PORT [PART]. An effect is made, and then its engine loses the answer; a PART dies."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from dbos import DBOS, SetWorkflowID
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from faults.crashing_bank import Bank
from printed.pages import run

document, folder, port, *parts = sys.argv[1:]
bank = Bank(Path(folder))
url = {'"sqlite:///flows.db"': f'"sqlite:///{folder}/flows.db", lease=3'}
page = run(document, {"bank": bank}, url, "Temporal, DBOS, Prefect")


def paid(*orders):
    assert bank.paid() == sorted(orders), bank.paid()


@workflow.defn(name="buy", sandboxed=False)
class Buy:
    @workflow.run
    async def run(self, order: str) -> str:
        seconds = timedelta(seconds=5)
        return await workflow.execute_activity(page["charge_activity"], order, start_to_close_timeout=seconds)


async def temporal_worker():
    """Work until the process is ended from outside."""
    client = await Client.connect(f"127.0.0.1:{port}")
    with ThreadPoolExecutor(2) as threads:
        await Worker(
            client,
            task_queue="shop",
            workflows=[Buy],
            activities=[page["charge_activity"]],
            activity_executor=threads,
            max_cached_workflows=0,  # the test server gives a cached workflow to no worker but its own
        ).run()


@contextmanager
def worker():
    """Run a worker of Temporal in another process."""
    process = subprocess.Popen([sys.executable, __file__, document, folder, port, "worker"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def temporal():
    """A worker is killed between the effect and its record. Temporal gives the activity to the next worker."""
    bank.crash(["t1"])
    client = await Client.connect(f"127.0.0.1:{port}")
    with worker() as first:
        buying = await client.start_workflow("buy", "t1", id="w-1", task_queue="shop", result_type=str)
        assert await asyncio.to_thread(first.wait, 60) == -9
    paid("t1")
    with worker():
        assert await buying.result() == "charged t1"
        paid("t1")
        assert bank.asked() == ["t1", "t1"]  # the second time with the key that the bank knows
        for run_of in ("w-2", "w-3"):  # two runs are two operations
            assert await client.execute_workflow("buy", "t2", id=run_of, task_queue="shop") == "charged t2"
    paid("t1", "t2", "t2")


def dbos(*, is_killed):
    """A process is killed after the effect, before DBOS has recorded the step; the next one recovers the workflow."""
    once = page["once"]
    if is_killed:
        using = once.using
        once.using = lambda **options: SimpleNamespace(run=lambda *call: (using(**options).run(*call), os._exit(9)))
    config = {"name": "shop", "system_database_url": f"sqlite:///{folder}/dbos.db"}
    DBOS(config=config | {"log_level": "CRITICAL", "application_version": "1"})
    DBOS.launch()
    with SetWorkflowID("w-1"):
        assert page["buy"]("d1") == "charged d1"
    DBOS.destroy()


def prefect():
    """A task fails after its effect, and Prefect tries it again."""
    once, tries = page["once"], []
    using = once.using

    def run_and_fail(options, call):
        value = using(**options).run(*call)
        tries.append(value)
        if len(tries) == 1:
            raise ConnectionError("the answer is lost")
        return value

    once.using = lambda **options: SimpleNamespace(run=lambda *call: run_and_fail(options, call))
    assert page["shop"]("p1") == "charged p1"
    assert len(tries) == 2
    once.using = using


if parts == ["worker"]:
    asyncio.run(temporal_worker())
if parts == ["dbos"]:
    dbos(is_killed=True)
asyncio.run(temporal())
done = subprocess.run([sys.executable, __file__, document, folder, port, "dbos"])
assert done.returncode == 9, done
dbos(is_killed=False)
paid("t1", "t2", "t2", "d1")
prefect()
paid("t1", "t2", "t2", "d1", "p1")
assert bank.asked() == ["t1", "t1", "t2", "t2", "d1", "p1"]
print("all once")
