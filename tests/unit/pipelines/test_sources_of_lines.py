"""NDJSON as a source: each line is tried once in a run, and nothing stops at a bad one."""

import asyncio
import contextlib

import pytest

from onceward import Once
from onceward.consumers.broker import BrokerError
from onceward.consumers.serving import StoppableBatch
from onceward.pipe import lines as input_lines
from onceward.pipelines.pipeline import PipelineRun

PRINT = "sinks: [{stdout: null}]\n"


def test_a_malformed_line_is_told_and_others_go_on(pipelines):
    (pipelines.folder / "orders.ndjson").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n{"id": \n\n\xff\n{"n": 1}\n{"id": 2}')
    outcomes = pipelines.write(PRINT).run()
    assert sorted(one.status for one in outcomes) == ["done", "done", "malformed", "malformed", "malformed"]
    assert "pipeline orders: 'message.id' finds nothing in this message" in [str(one.error) for one in outcomes]


@pytest.mark.slow
def test_a_file_that_is_cut_off_while_it_is_read_does_not_end_like_a_whole_one(pipelines):
    pipelines.functions(f"import os\ndef pay(order):\n    os.truncate('{pipelines.folder}/orders.ndjson', 0)\n")
    pipelines.lines(*({"id": number, "note": "x" * 1000} for number in range(3000)))
    with pytest.raises(BrokerError, match="became shorter while it was read"):
        pipelines.write("steps: [{call: {function: 'SHOP:pay'}}]\n").run()


async def test_a_line_whose_key_another_worker_holds_waits_for_it(pipelines):
    pipelines.lines({"id": 1}, {"id": 2})
    pipelines.write(PRINT)
    once, outcomes = Once(pipelines.ledger), []
    claim = once.acquire(1, name="orders", lease=300)

    task = asyncio.create_task(PipelineRun(pipelines.load(), outcomes.append).run_async())
    while not outcomes:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(claim.release)
    await task
    once.close()
    assert [(one.status, one.key) for one in outcomes] == [("done", "orders:2"), ("done", "orders:1")]


def test_a_batch_that_fails_as_a_whole_does_not_end_the_run_as_if_its_lines_were_done(pipelines, monkeypatch):
    async def fails(self, records):
        raise ZeroDivisionError

    pipelines.lines({"id": 1}, {"id": 2})
    monkeypatch.setattr(StoppableBatch, "run_async", fails)  # nothing is known that raises there
    with pytest.raises(BrokerError, match=r"orders\.ndjson:\d has no outcome.*run this again"):
        pipelines.write(PRINT).run()


def test_a_line_that_memory_does_not_take_ends_the_run_after_those_before_it(pipelines, monkeypatch):
    monkeypatch.setattr(input_lines, "LONGEST", 100)
    pipelines.lines({"id": 1}, {"id": 2, "note": "x" * 100}, {"id": 3})
    with pytest.raises(BrokerError, match="line 2 takes more than 100 bytes: take it out"):
        pipelines.write(PRINT).run()
    with contextlib.closing(Once(pipelines.ledger)) as once:
        assert [record.key for record, _ in once.ledger.records()] == ["orders:1"]
