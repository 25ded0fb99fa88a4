"""``onceward pipe`` on bad input, on a great deal of input, and on a ledger that fails."""

import gzip
import resource
import sqlite3
import subprocess
import sys

import pytest

from commands.command_line import Cli
from tables import each


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


BAD = [
    (b"nonsense\n", "not JSON"),
    (b'{"id": "\xff"}\n', "not UTF-8"),
    (b'{"n": 1}\n', "no key: 'line.id' finds nothing"),
    (b'{"id": [1, null]}\n', "missing"),
    (b'{"id": NaN}\n', "NaN at byte 7"),
    (b'{"id": 1, "id": 2}\n', "'id' is there twice at byte 10"),
    (b"id,cents\n", "It looks like CSV"),
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


@each(
    ("content", "kind"), [(gzip.compress(b'{"id": 1}\n', mtime=0), "gzip"), ('{"id": 1}\n'.encode("utf-16"), "UTF-16")]
)
def test_a_file_that_is_no_text_in_utf_8_is_named_and_not_read(cli, content, kind):
    (cli.folder / "in.ndjson").write_bytes(content)
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "true")
    assert result.returncode == 1
    assert "in.ndjson is " in result.stderr
    assert kind in result.stderr


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


def test_a_line_that_is_too_long_is_malformed_and_memory_is_that_of_a_small_file(cli):
    (cli.folder / "small").write_text('{"id":0}\n')
    with (cli.folder / "large").open("wb") as file:
        file.write(b'{"id":1}\n{"id":2,"x":"')
        for _ in range(100):
            file.write(b"y" * 1_000_000)
        file.write(b'"}\n{"id":3}\n')
    small, _ = peak(cli, "pipe", "small", "--key", "line.id", "--", "cat")
    large, done = peak(cli, "pipe", "large", "--key", "line.id", "--rejects", "rejects", "--new-only", "--", "cat")
    assert done.returncode == 3
    assert done.stdout == b'{"id":1}\n{"id":3}\n'
    assert b"large:2: malformed: longer than 16777216 bytes" in done.stderr
    assert (cli.folder / "rejects").stat().st_size == 100_000_016
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
