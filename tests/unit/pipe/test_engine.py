"""The engine of ``onceward pipe``, used from Python."""

import json
import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from onceward import Once
from onceward.consumers.stop import Stop
from onceward.pipe import Command, Function, NameTaken, Pipe, Reporter
from onceward.terminal import write_all

LINES = [{"id": 1, "n": "one"}, {"id": 2, "n": "two"}, {"id": 1, "n": "one, again"}]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "in.ndjson"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES) + "no json\n")
    return str(path)


class Heard(Reporter):
    def __init__(self):
        super().__init__()
        self.outcomes, self.rejected = [], []

    def show(self, job):
        if job.kind == "malformed":
            self.rejected.append((job.number, job.key, job.error))
        else:
            self.outcomes.append((job.key, job.kind, b"".join(job.output.raw())))


def charge(line: dict) -> str:
    return f"charged {line['n']}\ud800"


def test_function_handles_each_key_once_and_reporter_is_told_of_each_line(lines, tmp_path):
    heard = Heard()
    rejects = tmp_path / "rejects"
    end = Pipe(Once("memory:"), Function(charge), key="line.id").run([lines], reporter=heard, rejects=str(rejects))
    one, two = rb"charged one\ud800" + b"\n", rb"charged two\ud800" + b"\n"
    assert heard.outcomes == [("pipe:1", "ran", one), ("pipe:2", "ran", two), ("pipe:1", "replayed", one)]
    ((number, key, error),) = heard.rejected
    assert (number, key) == (4, None)
    assert error.startswith("the payload is not JSON")
    assert rejects.read_bytes() == b"no json\n"
    assert end.why == "malformed"
    assert end.counts == {"ran": 2, "replayed": 1, "failed": 0, "parked": 0, "busy": 0, "malformed": 1}
    assert (end.text, end.running) == ("", False)


def test_a_command_of_any_length_runs_without_a_reporter(lines):
    stop, once = Stop(), Once("memory:")
    command = Command(["sh", "-c", "test $1 -lt 2", "sh", "{line.id}", *["x" * 1000] * 300], stop, 1000)
    try:
        ends = [Pipe(once, command, key="line.id", jobs=2).run([lines], stop=stop) for _ in range(2)]
    finally:
        command.close()
    assert [end.why for end in ends] == ["left"] * 2
    assert [[end.counts[kind] for kind in ("ran", "replayed", "failed")] for end in ends] == [[1, 1, 1], [0, 2, 1]]


def test_a_name_belongs_to_one_handler(lines):
    once = Once("memory:")
    Pipe(once, Function(charge), key="line.id").run([lines])
    with pytest.raises(NameTaken, match="belong to another command") as taken:
        Pipe(once, Function(json.dumps), key="obj.id").run([lines])
    assert taken.value.before == f"--call {__name__}:charge"
    assert taken.value.key == "onceward.pipe:pipe"


def test_a_run_that_a_program_stops_is_not_done(lines):
    stop = Stop()
    stop.ask()
    once = Once("memory:")
    end = Pipe(once, Function(charge), key="line.id").run([lines], stop=stop)
    assert (end.why, end.counts["ran"]) == ("left", 0)
    once.close()


def test_a_reporter_that_cannot_write_ends_the_run(tmp_path):
    path = tmp_path / "many.ndjson"
    path.write_text("".join(f'{{"id": {n}, "n": ""}}\n' for n in range(500)))

    class Deaf(Reporter):
        def show(self, job):
            self.broken = BrokenPipeError()

    end = Pipe(Once("memory:"), Function(charge), key="line.id").run([str(path)], reporter=Deaf())
    assert end.why == "unread"
    assert end.counts["ran"] < 500


def test_output_waits_for_the_reader_of_a_pipe_that_another_program_has_made_non_blocking():
    read, write = os.pipe()
    os.set_blocking(write, False)
    full = os.write(write, bytes(10_000_000))
    with ThreadPoolExecutor() as pool, open(write, "wb"), open(read, "rb") as reader:
        writing = pool.submit(write_all, write, b"more")
        wait([writing], 0.1)
        assert reader.read(full) == bytes(full)
        writing.result()
        assert reader.read(4) == b"more"
