"""NDJSON and CSV as sources: each line is tried once in a run, and nothing stops at a bad one."""

import asyncio

import pytest

from onceward import Once
from onceward.consumers.broker import BrokerError
from onceward.consumers.serving import StoppableBatch
from onceward.pipelines.pipeline import PipelineRun
from onceward.pipelines.sources import csv as csv_rows

PRINT = "sinks: [{stdout: null}]\n"
CSV = "name: orders\nsource: {csv: {files: [a.csv, b.csv], rejects: bad.csv}}\n"


def rows(pipelines, first, second="id\n"):
    """Run a pipeline that reads these two files."""
    for name, text in (("a.csv", first), ("b.csv", second)):
        (pipelines.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return pipelines.write(PRINT, head=CSV).run()


def test_a_malformed_line_is_told_and_kept_and_others_go_on(pipelines):
    (pipelines.folder / "orders.ndjson").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n{"id": \n\n\xff\n{"n": 1}\n{"id": 2}')
    head = "name: orders\nsource: {ndjson: {files: [orders.ndjson], rejects: bad.ndjson}}\n"
    outcomes = pipelines.write(PRINT, head=head).run()
    assert sorted(one.status for one in outcomes) == ["done", "done", "malformed", "malformed", "malformed"]
    assert "pipeline orders: 'message.id' finds nothing in this message" in [str(one.error) for one in outcomes]
    assert pipelines.folder.joinpath("bad.ndjson").read_bytes() == b'{"id": \n\xff\n'


def test_rows_of_csv_are_objects(pipelines):
    quoted = 'id,note\n1,"two\nlines, and ""quotes"""\n2,\n\n3,too,many\n'
    outcomes = rows(pipelines, quoted, b"\xef\xbb\xbfnote,id\r\nx,4\r\n")
    found = [one.value[0] for one in outcomes if one.ok]
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": "1", "note": 'two\nlines, and "quotes"'},
        {"id": "2", "note": ""},
        {"id": "4", "note": "x"},
    ]
    assert pipelines.folder.joinpath("bad.csv").read_text() == "3,too,many\n"
    (pipelines.folder / "a.csv").write_text("id\tnote\n1\ttabs\n\t\n\n2\n")
    tabs = CSV.replace("rejects", 'separator: "\\t", rejects').replace(", b.csv", "")
    outcomes = pipelines.write(PRINT, head=tabs, guard="guard: {}\n").run()
    assert sorted(one.value[0]["note"] for one in outcomes if one.ok) == ["", "tabs"]
    assert len(outcomes) == 3


def test_a_last_row_that_can_be_cut_waits_for_its_end(pipelines):
    outcomes = rows(pipelines, "id,amount\n1,10.00\n2,19", "id\n3,4\n")
    assert [one.value[0]["id"] for one in outcomes if one.ok] == ["1"]
    assert pipelines.folder.joinpath("bad.csv").read_text() == "2,19\n3,4\n"
    with (pipelines.folder / "a.csv").open("a") as writer:
        writer.write("9.00\n")
    assert [one.value[0]["amount"] for one in pipelines.run() if one.ok] == ["10.00", "199.00"]


def test_rows_that_end_with_a_carriage_return_alone_are_not_lost(pipelines):
    outcomes = rows(pipelines, b'id,size\r\n1,2\r3,4\n5,"6\r7"\r\n', b"id,size\n")
    assert [one.value[0] for one in outcomes if one.ok] == [{"id": "5", "size": "6\r7"}]
    assert [one.status for one in outcomes if not one.ok] == ["malformed"]


def test_a_quote_within_a_value_swallows_no_rows(pipelines):
    outcomes = rows(
        pipelines, 'id,size\n1,5" pipe\n2,x\n3,6" pipe\n4,"a\n\n\nb"\n5,\n', 'id,size\n6,"never closed\n7,x\n'
    )
    found = {row["id"]: row["size"] for one in outcomes if one.ok for row in one.value}
    assert found == {"1": '5" pipe', "2": "x", "3": '6" pipe', "4": "a\n\n\nb", "5": ""}
    assert [one.status for one in outcomes if not one.ok] == ["malformed"]
    assert pipelines.folder.joinpath("bad.csv").read_text() == '6,"never closed\n7,x\n'


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


def test_a_quote_that_nothing_closes_is_given_up_at_the_longest_value(pipelines, monkeypatch):
    monkeypatch.setattr(csv_rows, "LONGEST", 1000)
    rest = '1,"never closed\n' + '2,say ""x""\n' * 1000
    outcomes = rows(pipelines, f"id,note\n{rest}", "id\n3\n")
    assert sorted(one.status for one in outcomes) == ["done", "malformed"]
    assert pipelines.folder.joinpath("bad.csv").read_text() == rest


def test_lines_within_a_value_that_is_too_long_become_no_rows(pipelines):
    outcomes = rows(pipelines, f'id,note\n1,"{"x" * 140_000}\n2,forged\n"\n3,real\n')
    assert [one.value for one in outcomes if one.ok] == [[{"id": "3", "note": "real"}]]
    assert [one.status for one in outcomes if not one.ok] == ["malformed"]


def test_a_file_that_names_a_field_twice_ends_the_run(pipelines):
    with pytest.raises(BrokerError, match="names a field twice"):
        rows(pipelines, "id,id\n1,2\n")
