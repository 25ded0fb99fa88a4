"""``onceward pipe`` on bad input, on a great deal of input, and on a ledger that fails."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import pytest

from commands.command_line import Cli
from tables import each


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


# --- malformed lines --------------------------------------------------------------------------------------------------

BAD = [
    (b"nonsense\n", "not JSON"),
    (b'{"id": 1\n', "not JSON"),
    (b'{"id": "\xff"}\n', "not UTF-8"),
    (b'{"n": 1}\n', "no key: 'line.id' finds nothing"),
    (b'{"id": null}\n', "no key"),
    (b'{"id": ""}\n', "empty str"),
    (b'{"id": [1, null]}\n', "missing"),
    (b"[1, 2]\n", "no key"),
    (b'{"id": NaN}\n', "NaN at byte 7"),
    (b'{"id": 1, "id": 2}\n', "'id' is there twice at byte 10"),
    (b"id,cents\n", "It looks like CSV"),
    (b'{"id": 1} {"id": 2}\n', "not JSON"),
    (b"[" * 100_000 + b"\n", "not JSON"),
    (b'{"id": 5, "n": "a\\u0000b"}\n', "NUL"),
    (b'{"id": 6}\n', "{line.n} finds nothing in this line"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_malformed_line_is_reported_and_copied_and_the_others_go_on(cli, line, reason):
    (cli.folder / "in.ndjson").write_bytes(b'{"id":"a","n":1}\n\n' + line + b'{"id":"b","n":2}\n')
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--rejects", "rejects", "--", "echo", "{line.n}")
    assert result.stdout == b"1\n2\n"
    assert result.returncode == 3
    assert "in.ndjson:3: malformed: " in result.stderr
    assert reason in result.stderr
    assert "ran 2, replayed 0, failed 0, parked 0, busy 0, malformed 1" in result.stderr
    assert (cli.folder / "rejects").read_bytes() == line


def test_rejects_are_appended_line_by_line(cli):
    for _ in range(2):
        cli.run("pipe", "--key", "line.id", "--rejects", "rejects", "--", "true", input=b"one\ntwo")
    assert (cli.folder / "rejects").read_bytes() == b"one\ntwo\none\ntwo\n"


def test_no_rejects_file_is_made_when_nothing_is_malformed(cli):
    cli.run("pipe", "--key", "line.id", "--rejects", "rejects", "--", "true", input=b'{"id":1}\n')
    assert not (cli.folder / "rejects").exists()


@each(
    ("content", "kind"), [(gzip.compress(b'{"id": 1}\n', mtime=0), "gzip"), ('{"id": 1}\n'.encode("utf-16"), "UTF-16")]
)
def test_a_file_that_is_no_text_in_utf_8_is_named_and_not_read(cli, content, kind):
    (cli.folder / "in.ndjson").write_bytes(content)
    result = cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "true")
    assert result.returncode == 1
    assert "in.ndjson is " in result.stderr
    assert kind in result.stderr


def test_a_byte_order_mark_is_skipped(cli):
    (cli.folder / "in.ndjson").write_bytes(b'\xef\xbb\xbf{"id":1}\n')
    assert "ran 1" in cli.run("pipe", "in.ndjson", "--key", "line.id", "--", "true").stderr


def test_blank_lines_are_skipped(cli):
    result = cli.run("pipe", "--key", "line.id", "--", "true", input=b'\n  \r\n{"id":1}\n\n')
    assert result.returncode == 0
    assert "ran 1" in result.stderr


def test_a_failed_line_outweighs_a_malformed_one_in_the_exit_status(cli):
    assert cli.run("pipe", "--key", "line.id", "--", "false", input=b'oops\n{"id":1}\n').returncode == 1


def test_no_input_is_a_run_that_is_done(cli):
    assert cli.run("pipe", "--key", "line.id", "--", "true").returncode == 0


@each("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_does_no_harm(cli, closed):
    cli.write("in.ndjson", {"id": 1})
    run = f'exec "$0" -m onceward pipe in.ndjson --key line.id -- touch ran {closed}'
    done = subprocess.run(["sh", "-c", run, sys.executable], cwd=cli.folder, env=cli.env, capture_output=True)
    assert done.returncode == 0
    assert (cli.folder / "ran").exists()


def test_names_and_arguments_need_not_be_utf_8(cli):
    name = os.fsdecode(b"in\xff")
    cli.write(name, {"id": 1})
    result = cli.run("pipe", name, "--key", "line.id", "--json", "--", "printf", "%s", os.fsdecode(b"\xfe"))
    assert result.returncode == 0
    first = json.loads(result.stdout.splitlines()[0])
    assert (first["file"], first["output"]) == ("in\ufffd", {"hex": "fe"})
    assert "Warning" not in result.stderr


# --- constant memory --------------------------------------------------------------------------------------------------

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


@pytest.mark.nightly
def test_a_file_of_100_mb_takes_no_more_memory_than_a_small_one(cli):
    (cli.folder / "handlers.py").write_text("def handle(line): return None\n")
    line = json.dumps({"id": "{}", "fill": "x" * 100_000})
    for name, count in (("small", 10), ("large", 1000)):
        with (cli.folder / name).open("w") as file:
            file.writelines(line.replace("{}", str(n % 400)) + "\n" for n in range(count))
    options = ("--key", "line.id", "--jobs", "2", "--call", "handlers:handle")
    small, _ = peak(cli, "pipe", "small", *options)
    large, done = peak(cli, "pipe", "large", *options)
    assert b"ran 390, replayed 610" in done.stderr
    assert large < small + 20_000_000


def test_a_line_that_is_too_long_is_malformed_without_being_held(cli):
    (cli.folder / "small").write_text('{"id":0}\n')
    with (cli.folder / "large").open("wb") as file:
        file.write(b'{"id":1}\n{"id":2,"x":"')
        for _ in range(100):
            file.write(b"y" * 1_000_000)
        file.write(b'"}\n{"id":3}\n')
    small, _ = peak(cli, "pipe", "small", "--key", "line.id", "--", "cat")
    large, done = peak(cli, "pipe", "large", "--key", "line.id", "--rejects", "rejects", "--", "cat")
    assert done.returncode == 3
    assert done.stdout == b'{"id":1}\n{"id":3}\n'
    assert b"large:2: malformed: longer than 16777216 bytes" in done.stderr
    assert (cli.folder / "rejects").stat().st_size == (cli.folder / "large").stat().st_size - 18
    assert large < small + 60_000_000


@pytest.mark.nightly
def test_a_line_of_16_mib_is_handled(cli):
    line = b'{"id":1,"x":"%s"}\n' % (b"y" * (16 * 1024 * 1024 - 16))
    result = cli.run("pipe", "--key", "line.id", "--", "wc", "-c", input=line)
    assert result.stdout.strip() == str(len(line)).encode()


# --- a ledger that fails ----------------------------------------------------------------------------------------------


def one_line(result, told):
    assert result.returncode == 4
    assert told in result.stderr
    assert "Error:" not in result.stderr


def test_a_store_that_is_no_database_stops_the_run_before_it_begins(cli):
    (cli.folder / "onceward.db").write_text("a letter, and a long one at that\n" * 100)
    result = cli.run("pipe", "--key", "line.id", "--", "touch", "ran", input=b'{"id":1}\n')
    one_line(result, "not an SQLite database")
    assert result.stderr.count("\n") == 1
    assert not (cli.folder / "ran").exists()


def test_a_store_in_a_folder_that_does_not_exist_stops_the_run(cli):
    one_line(
        cli.run("pipe", "--key", "line.id", "--store", "sqlite:///no/x.db", "--", "true", input=b"{}"),
        "cannot be opened",
    )


def test_a_read_only_store_stops_the_run(cli):
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("root may write to everything, and there is no setpriv (Debian's util-linux) to take that right away")
    cli.run("pipe", "--key", "line.id", "--", "true", input=b'{"id":1}\n')
    for path in (*cli.folder.glob("onceward.db*"), cli.folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    command = [*unprivileged, sys.executable, "-m", "onceward", "pipe", "--key", "line.id", "--", "true"]
    result = subprocess.run(command, cwd=cli.folder, env=cli.env, input='{"id":2}\n', capture_output=True, text=True)
    cli.folder.chmod(0o755)
    one_line(result, "read-only")


def test_a_store_that_is_locked_for_long_stops_the_run_and_nothing_runs(cli):
    import sqlite3

    cli.run("pipe", "--key", "line.id", "--", "touch", "{line.id}", input=b'{"id":"one"}\n')
    holder = sqlite3.connect(cli.folder / "onceward.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store = ("--store", "sqlite:///onceward.db?timeout=0.1")
    result = cli.run("pipe", "--key", "line.id", *store, "--", "touch", "{line.id}", input=b'{"id":"two"}\n')
    holder.close()
    one_line(result, "another process holds its write lock")
    assert "stopped because the ledger failed" in result.stderr
    assert not (cli.folder / "two").exists()


def test_a_full_disk_stops_the_run(cli):
    import resource

    def no_space_left():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    lines = b"".join(b'{"id":%d}\n' % n for n in range(500))
    run = ("pipe", "--key", "line.id", "--lease", "2", "--", "printf", "%s", "x" * 5000)
    one_line(cli.run(*run, input=lines, preexec_fn=no_space_left), "stopped because the ledger failed")
    again = cli.run(*run, input=lines)
    assert again.returncode == 0
    # A completion can have found room only without its result: then the line is done, and says why it has no output.
    without = again.stderr.count("too large to be recorded")
    assert without <= 1
    assert len(again.stdout) == (500 - without) * 5000
