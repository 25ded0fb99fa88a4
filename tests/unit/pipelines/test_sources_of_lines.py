"""NDJSON and CSV as sources: each line is tried once in a run, and nothing stops at a bad one."""

import asyncio
import contextlib

import pytest

from onceward import Once
from onceward.consumers.broker import BrokerError
from onceward.consumers.serving import StoppableBatch
from onceward.pipe import lines as input_lines
from onceward.pipelines.pipeline import PipelineRun

PRINT = "sinks: [{stdout: null}]\n"
CSV = "name: orders\nsource: {csv: {files: [a.csv, b.csv]}}\n"


def rows(pipelines, first, second="id\n", head=CSV):
    """Run a pipeline that reads these two files. Return the messages that were handled, and the places of malformed rows."""
    for name, text in (("a.csv", first), ("b.csv", second)):
        (pipelines.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    outcomes = pipelines.write(PRINT, head=head).run()
    malformed = [one.record.id.rpartition("/")[2] for one in outcomes if one.status == "malformed"]
    return sorted((one.value[0] for one in outcomes if one.ok), key=lambda row: row["id"]), sorted(malformed)


def test_rows_of_csv_are_objects(pipelines):
    text = 'id,note\n1,"two\n\nlines, and ""quotes"""\n2,\n\n3,too,many\n'
    found, malformed = rows(pipelines, text, b"\xef\xbb\xbfnote,id\r\nx,4\r\n\xff,5\r\n")
    assert [tuple(row.values()) for row in found] == [("1", 'two\n\nlines, and "quotes"'), ("2", ""), ("x", "4")]
    assert malformed == ["a.csv:7", "b.csv:3"]
    tabs = CSV.replace("csv]", 'csv], separator: "\\t"')
    assert rows(pipelines, "id\tnote\n7\t\n\n\t\n", head=tabs) == ([{"id": "7", "note": ""}], ["a.csv:4"])


def test_what_is_cut_or_wrongly_quoted_is_malformed_and_swallows_and_forges_no_row(pipelines):
    text = 'id,size\n1,5" pipe\n2,"a"b,"\n9,forged\n"\n3,x\n4,2\r5,4\n6,"7\r8"\n'
    found, malformed = rows(pipelines, text, 'id,size\n7,"never closed\n8,x\n')
    assert {row["id"]: row["size"] for row in found} == {"1": '5" pipe', "3": "x", "6": "7\r8"}
    assert malformed == ["a.csv:3", "a.csv:7", "b.csv:2"]
    assert rows(pipelines, "id,amount\n7,19") == ([], ["a.csv:2"])


def test_a_value_without_an_end_and_a_field_that_is_named_twice_end_the_run(pipelines):
    with pytest.raises(BrokerError, match=r"a\.csv: line 2: field larger than .*: close its quotes"):
        rows(pipelines, 'id,note\n1,"' + "x\n" * 70_000)
    with pytest.raises(BrokerError, match=r"a\.csv: its first row, which names the fields: a field is there twice"):
        rows(pipelines, "id,id\n1,2\n")


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
