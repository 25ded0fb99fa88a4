"""The Python of the pages on task queues runs as it is printed."""

import asyncio
import gc
import sys
from types import ModuleType, SimpleNamespace

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from onceward.outbox import drain
from places import DOCS
from printed.pages import run
from servers.environments import environment, run_page


def test_the_page_on_task_queues(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    broker = StubBroker()
    dramatiq.set_broker(broker)

    names = run("docs/reference/task-queues.md", vars(module), title="Ten lines that work")
    run("docs/reference/task-queues.md", names, title="Dramatiq, Procrastinate, Taskiq")

    def report(day):
        return day

    report.__module__ = "shop.tasks"
    monkeypatch.setitem(sys.modules, "shop.tasks", SimpleNamespace(report=dramatiq.actor(report)))
    run("docs/reference/outbox.md", {"once": names["once"]}, title="Queue a job once")

    assert drain(30) == 0
    assert broker.queues["default"].qsize() == 2
    assert names["charge"]({"id": 42}) == "charged 42"
    assert asyncio.run(names["refund"]({"id": 42})) == "refunded 42"
    assert names["ship"](order_id=42) is None
    names["once"].close()


# SAQ and RQ call what redis-py wants otherwise, and leave connections to the collector.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_page_on_other_task_queues(redis, monkeypatch, tmp_path):
    import rq  # here: it changes signal handlers when it is loaded
    from saq import Worker

    monkeypatch.chdir(tmp_path)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    replaced = {"redis://127.0.0.1:6379": redis.url}
    names = run("docs/reference/task-queues.md", {"__name__": "shop"}, replaced, "RQ, Huey, SAQ")
    vars(module).update(names)
    once, ledger = names["once"], names["once"].ledger
    once.acquire(43, name="shop.charge", lease=600)

    # RQ: the page has sent 42; a busy job waits for the scheduler.
    queue = names["queue"]
    waits = queue.enqueue(names["charge_job"], {"id": 43})
    worker = rq.SimpleWorker([queue], connection=queue.connection)
    monkeypatch.setattr(worker, "_install_signal_handlers", lambda: None)
    worker.work(burst=True, logging_level="ERROR")
    assert ledger.show("shop.charge:42")[0].status == "COMPLETED"
    assert waits.get_status() == "scheduled"

    # Huey: the busy task is scheduled, and keeps its retries; a half-done one is finished.
    huey = names["huey"]
    result = names["charge_task"]({"id": 44})
    huey.execute(huey.dequeue())
    assert result() == "charged 44"
    names["charge_task"]({"id": 43})
    task = huey.dequeue()
    huey.execute(task)
    assert task.retries == 10
    assert huey.scheduled_count() == 1
    names["finish_half_done"].call_local()

    # SAQ: the busy job is retried when its lease is over.
    async def worked():
        worker = Worker(names["saq_queue"], functions=[names["charge_saq"]], dequeue_timeout=0.5)
        await once.acquire_async(45, name="shop.charge", lease=3)
        await names["send"]({"id": 45})
        (job,) = [one async for one in names["saq_queue"].iter_jobs()]
        running = asyncio.create_task(worker.start())
        async with asyncio.timeout(180):
            while job.status != "complete":
                await asyncio.sleep(0.05)
                await job.refresh()
        await worker.stop()
        await asyncio.gather(running, return_exceptions=True)
        await names["saq_queue"].disconnect()
        return job

    job = asyncio.run(worked())
    assert job.result == "charged 45"
    once.close()
    names.clear()
    vars(module).clear()
    gc.collect()  # what these queues leave open is not found in another test


@pytest.mark.nightly
def test_a_busy_job_of_arq_comes_again_after_the_lease(redis, tmp_path):
    python = environment("arq", ["arq==0.28.0"])  # it wants a hiredis that does not fit beside our pins
    page = DOCS / "reference" / "task-queues.md"
    assert run_page(python, "arq_jobs.py", page, tmp_path, redis.url) == "COMPLETED 2\n"
