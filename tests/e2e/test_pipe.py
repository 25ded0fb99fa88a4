"""``onceward pipe``: what runs, what is printed, what the exit status says; bad input, a great deal of it, and a ledger that fails."""

import json
import resource
import sqlite3
import subprocess
import sys

import pytest

from commands.command_line import Cli
from tables import each


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.write("in.ndjson", {"id": 1, "n": "one"}, {"id": 2, "n": "two"}, {"id": 1, "n": "one, again"})
    return made


def pipe(cli, *command, options=(), file="in.ndjson"):
    return cli.run("pipe", file, "--key", "line.id", *options, "--", *command)


def objects(result):
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return found[:-1], found[-1]["summary"]


def test_command_runs_once_per_key_and_duplicate_prints_what_was_recorded(cli):
    say = cli.script("say", 'echo "$1" >> log; echo "did $1"; echo careful >&2')
    first, second = (pipe(cli, say, "{line.n}") for _ in range(2))
    assert first.stdout == second.stdout == b"did one\ndid two\ndid one\n"
    assert first.returncode == 0
    assert cli.log() == ["one", "two"]
    assert first.stderr.count("careful\n") == 2
    assert "ran 2, replayed 1, failed 0, parked 0, busy 0, malformed 0 in" in first.stderr
    assert "ran 0, replayed 3" in second.stderr
    assert pipe(cli, say, "{line.n}", options=["--new-only"]).stdout == b""


def test_the_line_is_the_commands_standard_input_as_it_stands(cli):
    given = b'{ "id":  1.50, "n": "\\u00e9" }\r\n{"id":2}\n{"id":"2"}'
    (cli.folder / "odd.ndjson").write_bytes(given)
    assert pipe(cli, "cat", file="odd.ndjson").stdout == given + b"\n"
    options = ("--key", "[line.id, line.n]", "--name", "n")
    assert cli.run("pipe", *options, "--", "cat", input=b'{"id":7,"n":1}\n').stdout == b'{"id":7,"n":1}\n'


def test_several_files_are_one_stream_and_plain_lines_tell_of_the_progress(cli):
    cli.write("more.ndjson", {"id": 2}, {"id": 3})
    result = cli.run("pipe", "in.ndjson", "more.ndjson", "--key", "line.id", "--json", "--", "sleep", "1.2")
    assert [one["outcome"] for one in objects(result)[0]] == ["ran", "ran", "replayed", "replayed", "ran"]
    assert result.stderr.startswith("onceward: ran ")


@each(
    ("template", "value", "argument"),
    [
        ("a{line.v}b{line.v}c", "-", "a-b-c"),
        ("{line.v}", {"a": [1.5, None]}, '{"a":[1.5,null]}'),
        ("{join('}', line.v)}", ["x", "y"], "x}y"),
        ('{{"v": "{line.v}"}}', "x", '{"v": "x"}'),
        ("{line.v}", "", ""),
        *(
            ("{line.v}", text, text)  # a shell would interpret it
            for text in ("$(touch hacked)", "; touch hacked", "a  b\n*", "'\"\\")
        ),
    ],
)
def test_an_argument_is_filled_in_from_the_line(cli, template, value, argument):
    cli.write("one.ndjson", {"id": f"{template} {value}", "v": value})
    options = ["--name", f"n{abs(hash(template))}"]
    assert pipe(cli, "printf", "%s", template, options=options, file="one.ndjson").stdout.decode() == argument
    assert not (cli.folder / "hacked").exists()


def test_a_failed_line_is_reported_and_run_again_by_the_next_run(cli):
    fail = cli.script(
        "fail", 'echo "$1" >> log; echo half; echo "no such card" >&2; test "$1" = 1 && kill -SEGV $$; exit 3'
    )
    result = pipe(cli, fail, "{line.id}")
    assert result.returncode == 1
    assert result.stdout == b""
    assert "in.ndjson:1: pipe:1: failed: killed by SIGSEGV\n" in result.stderr
    assert "in.ndjson:2: pipe:2: failed: exit status 3\n" in result.stderr
    assert "no such card\n" in result.stderr
    assert cli.log() == ["1", "2", "1"]
    record, _ = cli.once().ledger.show("pipe:2")
    assert record.error == "CommandFailed: exit status 3: no such card"


def test_a_key_is_parked_after_its_last_attempt_until_it_is_unparked(cli):
    fail = cli.script("fail", 'echo "$1" >> log; test -e mended')
    run = lambda: pipe(cli, fail, "{line.id}", options=["--max-attempts", "1"])
    first = run().stderr
    assert "(attempt 1 of 1, parked)" in first
    assert "failed 2, parked 1" in first
    second = run()
    assert second.returncode == 1
    assert "failed 0, parked 3" in second.stderr
    assert cli.log() == ["1", "2"]
    (cli.folder / "mended").touch()
    for key in ("pipe:1", "pipe:2"):
        cli.run("unpark", key)
    assert "ran 2, replayed 1" in run().stderr


def test_output_that_is_not_text_is_replayed_byte_for_byte(cli):
    binary = ("printf", "\\377\\000{line.id}")
    assert [pipe(cli, *binary).stdout for _ in range(2)] == [b"\xff\x001\xff\x002\xff\x001"] * 2
    found, _ = objects(pipe(cli, *binary, options=["--json"]))
    assert [o["output"] for o in found] == [{"hex": "ff0031"}, {"hex": "ff0032"}, {"hex": "ff0031"}]


def test_an_output_too_large_to_be_recorded_is_printed_whole_once(cli):
    result = pipe(cli, cli.script("large", "head -c 3000000 /dev/zero | tr '\\0' x"))
    assert (result.stdout, result.returncode) == (b"x" * 6_000_000, 0)
    for said in ("ran 2, replayed 1", "2 output(s) were too large to be recorded", "1 duplicate(s) printed nothing"):
        assert said in result.stderr


def test_outputs_of_jobs_that_run_side_by_side_never_interleave(cli):
    cli.write("many.ndjson", *({"id": n} for n in range(24)))
    meet = 'touch "here$1"; for i in $(seq 100); do ls here* | wc -l | grep -vqw "[1-5]" && break; sleep .05; done'
    slow = cli.script("slow", f'{meet}; for i in 1 2 3; do printf "%0.s$1" $(seq 5000); done; echo')
    result = pipe(cli, slow, "<{line.id}>", options=["--jobs", "6"], file="many.ndjson")
    lines = result.stdout.decode().split()
    assert len(lines) == 24
    assert all(len(set(line.strip("<>").split("><"))) == 1 for line in lines)


def test_a_second_line_of_a_key_in_flight_waits_and_replays(cli):
    cli.write("twins.ndjson", *({"id": "same", "n": n} for n in range(6)))
    slow = cli.script("slow", 'sleep .3; echo "$1" >> log; echo "did $1"')
    result = pipe(cli, slow, "{line.n}", options=["--jobs", "6", "--wait", "0"], file="twins.ndjson")
    assert "ran 1, replayed 5" in result.stderr
    assert len(set(result.stdout.splitlines())) == len(cli.log()) == 1


def test_json_has_one_object_per_line_and_a_summary(cli):
    cli.write("mixed.ndjson", {"id": 1}, "nonsense", {"id": 2}, "", {"id": 1})
    some = cli.script("some", 'test "$1" = 1 && echo "é{}" || { echo oops >&2; exit 9; }')
    result = pipe(cli, some, "{line.id}", options=["--json"], file="mixed.ndjson")
    found, summary = objects(result)
    by_line = {o["line"]: o for o in found}
    told = {"file": "mixed.ndjson", "line": 1, "key": "pipe:1", "outcome": "ran", "output": "é{}\n", "error": None}
    assert by_line[1] == told
    assert [by_line[n]["outcome"] for n in (2, 5)] == ["malformed", "replayed"]
    assert by_line[3]["error"] == "CommandFailed: exit status 9: oops"
    assert summary.pop("seconds") >= 0
    counts = {"ran": 1, "replayed": 1, "failed": 1, "parked": 0, "busy": 0, "malformed": 1}
    assert {name: summary[name] for name in counts} == counts
    assert result.returncode == 1


HANDLERS = """
import dataclasses, datetime, sys
@dataclasses.dataclass
class Receipt:
    id: int
    at: datetime.date

def receipt(line: dict) -> Receipt:
    open("log", "a").write(f"{line['id']} ")
    print("at work")
    return Receipt(line["id"], datetime.date(2026, 11, 21))

def fails(line): raise ValueError("no such card")
def leaves(line): sys.exit(3)
"""


def call(cli, function, *options):
    (cli.folder / "handlers.py").write_text(HANDLERS)
    return cli.run("pipe", "in.ndjson", "--key", "line.id", "--call", f"handlers:{function}", *options)


def test_function_runs_once_per_key_and_its_typed_result_replays_as_json(cli):
    for _ in range(2):
        result = call(cli, "receipt")
        assert result.stdout.splitlines() == [b'{"id":%d,"at":"2026-11-21"}' % n for n in (1, 2, 1)]
        assert result.returncode == 0
    assert cli.log() == ["1", "2"]
    found, _ = objects(call(cli, "receipt", "--json"))
    assert found[0]["output"] == {"id": 1, "at": "2026-11-21"}
    assert "at work" in call(cli, "receipt", "--name", "again").stderr


def test_an_exception_is_a_failed_line_with_the_place_it_came_from(cli):
    result = call(cli, "fails")
    assert result.returncode == 1
    assert "in.ndjson:1: pipe:1: failed: ValueError: no such card (handlers.py:13)" in result.stderr
    assert "n:2: failed: SystemExit: 3" in call(cli, "leaves", "--wait", "0", "--name", "n").stderr


def test_another_command_under_the_same_name_is_refused_until_that_name_is_cleared(cli):
    pipe(cli, "echo", "first one")
    result = pipe(cli, "echo", "second")
    assert (result.returncode, result.stdout) == (2, b"")
    said = ("Before: echo 'first one'", "now: echo second", "--name", "onceward clear onceward.pipe:pipe")
    assert [one for one in said if one not in result.stderr] == []
    assert "ran 2" in pipe(cli, "echo", "second", options=["--name", "other"]).stderr
    assert cli.run("clear", "onceward.pipe:pipe", "--yes").returncode == 0
    assert "replayed 3" in pipe(cli, "echo", "second").stderr


@each(
    "command",
    [
        ["sh", "-c", "echo {line.n}"],
        ["bash", "-o", "pipefail", "-ec", "echo '{line.n}'"],
        ["env", "A=1", "timeout", "9", "bash", "-lc", "echo {line.n}"],
        ["python3", "-X", "dev", "-c", "print('{line.n}')"],
        ["perl", "-e", "print 1;", "-e", "print '{line.n}'"],
        ["node", "--eval={line.n}"],
        ["ssh", "host", "echo", "{line.n}"],
    ],
)
def test_a_line_is_not_filled_into_code(cli, command):
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", *command)
    assert result.returncode == 2
    assert f"is code for {command[0].rpartition('/')[2] if command[0] != 'env' else 'bash'}" in result.stderr
    assert "\"$1\"' sh '{line.id}'" in result.stderr
    assert not (cli.folder / "onceward.db").exists()


@each(
    "command",
    [
        ["sh", "-c", 'printf "%s" "$1"', "sh", "{line.n}"],
        ["sh", "./say", "-c", "{line.n}"],
        ["env", "N={line.n}", "sh", "-c", 'printf "%s" "$N"'],
        ["python3", "-c", "import sys; print(sys.argv[1], end='')", "{line.n}"],
    ],
)
def test_a_line_may_be_an_argument_of_code(cli, command):
    cli.write("one.ndjson", {"id": " ".join(command), "n": "$(touch hacked)'"})
    (cli.folder / "say").write_text('printf "%s" "$2"')
    result = pipe(cli, *command, options=["--name", f"n{abs(hash(tuple(command)))}"], file="one.ndjson")
    assert result.stdout == b"$(touch hacked)'"
    assert not (cli.folder / "hacked").exists()


BAD = [
    (b"nonsense\n", "not JSON"),
    (b'{"id": "\xff"}\n', "not UTF-8"),
    (b'{"n": 1}\n', "no key: 'line.id' finds nothing"),
    (b'{"id": [1, null]}\n', "missing"),
    (b'{"id": NaN}\n', "(byte 7)"),
    (b'{"id": 1, "id": 2}\n', "'id' is there twice"),
    (b'{"id": 1} {"id": 2}\n', "not JSON"),
    (b"[" * 100_000 + b"\n", "not JSON"),
    (b'{"id": 5, "n": "a\\u0000b"}\n', "NUL"),
    (b'{"id": 6}\n', "{line.n} finds nothing in this line"),
]


def test_malformed_lines_are_reported_and_copied_and_the_others_go_on(cli):
    lines = b"".join(line for line, _ in BAD)
    (cli.folder / "in.ndjson").write_bytes(b'\xef\xbb\xbf{"id":"a","n":1}\n\n' + lines + b'  \r\n{"id":"b","n":2}\n')
    run = ("pipe", "in.ndjson", "--key", "line.id", "--rejects", "rejects", "--")
    result = cli.run(*run, "echo", "{line.n}")
    assert (result.stdout, result.returncode) == (b"1\n2\n", 3)
    for number, (_, reason) in enumerate(BAD, 3):
        (said,) = [one for one in result.stderr.splitlines() if one.startswith(f"in.ndjson:{number}: malformed: ")]
        assert reason in said
    assert f"ran 2, replayed 0, failed 0, parked 0, busy 0, malformed {len(BAD)}" in result.stderr
    assert (cli.folder / "rejects").read_bytes() == lines
    assert cli.run(*run, "echo", "{line.n}").returncode == 3
    assert (cli.folder / "rejects").read_bytes() == lines * 2


MEASURED = """
import os, resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def peak(cli, *arguments):
    """Return the peak memory (bytes) of a run with its exit status and output."""
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "onceward", *arguments]
    done = subprocess.run(command, cwd=cli.folder, env=cli.env, capture_output=True, timeout=100)
    return int(done.stderr.split()[-1]) * 1024, done


def test_a_line_that_is_too_long_ends_the_run_and_memory_is_that_of_a_small_file(cli):
    (cli.folder / "small").write_text('{"id":0}\n')
    with (cli.folder / "large").open("wb") as file:
        file.write(b'{"id":1}\n{"id":2,"x":"')
        for _ in range(100):
            file.write(b"y" * 1_000_000)
    small, _ = peak(cli, "pipe", "small", "--key", "line.id", "--", "cat")
    large, done = peak(cli, "pipe", "large", "--key", "line.id", "--", "cat")
    assert (done.returncode, done.stdout) == (1, b'{"id":1}\n')
    assert b"large: line 2 takes more than 16777216 bytes: take it out" in done.stderr
    assert large < small + 60_000_000


def stopped(result, told):
    """Assert that the ledger has stopped the run, and said so."""
    assert result.returncode == 4
    assert told in result.stderr
    assert "Error:" not in result.stderr


@each(("store", "told"), [("sqlite:///letter.db", "not an SQLite database"), ("sqlite:///no/x.db", "cannot be opened")])
def test_a_store_that_cannot_be_used_stops_the_run_before_it_begins(cli, store, told):
    (cli.folder / "letter.db").write_text("a letter, and a long one at that\n" * 100)
    result = cli.run("pipe", "--key", "line.id", "--store", store, "--", "touch", "ran", input=b'{"id":1}\n')
    stopped(result, told)
    assert result.stderr.count("\n") == 1
    assert not (cli.folder / "ran").exists()


def test_a_store_that_is_locked_for_long_stops_the_run_and_nothing_runs(cli):
    cli.run("pipe", "--key", "line.id", "--", "touch", "{line.id}", input=b'{"id":"one"}\n')
    holder = sqlite3.connect(cli.folder / "onceward.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store = ("--store", "sqlite:///onceward.db?timeout=0.1")
    result = cli.run("pipe", "--key", "line.id", *store, "--", "touch", "{line.id}", input=b'{"id":"two"}\n')
    holder.close()
    stopped(result, "another process holds its write lock")
    assert "stopped because the ledger failed" in result.stderr
    assert not (cli.folder / "two").exists()


def test_a_full_disk_stops_the_run(cli):
    def no_space_left():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    lines = b"".join(b'{"id":%d}\n' % n for n in range(500))
    run = ("pipe", "--key", "line.id", "--lease", "2", "--", "printf", "%s", "x" * 5000)
    stopped(cli.run(*run, input=lines, preexec_fn=no_space_left), "stopped because the ledger failed")
    again = cli.run(*run, input=lines)
    assert again.returncode == 0
    # A completion can have found room only without its result: then the line is done, and says why it has no output.
    without = again.stderr.count("too large to be recorded")
    assert without <= 1
    assert len(again.stdout) == (500 - without) * 5000
