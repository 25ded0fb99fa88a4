"""The command line as others see it: its help, its usage errors, and the commands for operators."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import wait

import pytest

import onceward
from commands.command_line import Cli
from onceward import LeaseLost
from onceward.core.drivers import drive
from onceward.keys.ledger_keys import ledger_key
from onceward.testing.bench import claim_of
from tables import each


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


@pytest.fixture
def held(cli):
    """A ledger with one key of each kind: done, released, parked, lapsed and live."""
    once = cli.once(name="n")
    claims = {key: once.acquire(key, lease=60) for key in ("a", "r", "p", "live")}
    with suppress(LeaseLost):  # on a busy machine it has lapsed before its claim is told
        once.acquire("lapsed", lease=0.05)
    claims["a"].complete({"receipt": 7})
    claims["r"].release("card declined")
    claims["p"].park("no such account")
    time.sleep(0.1)
    once.close()
    return cli


# --- help and usage ---------------------------------------------------------------------------------------------------


def test_the_version_is_told(cli):
    assert cli.run("--version").stdout.decode() == f"onceward {onceward.__version__}\n"


@each(
    ("arguments", "told"),
    [
        (["--key", "line.id"], "no command"),
        (["cat", "--key", "line.id"], "there is no file cat: is it the command?"),
        (["--key", "line.id", "--", "no-such-program"], "no-such-program: no such command"),
        (["--key", "line.id", "--", "./in.ndjson"], "not an executable file"),
        (["--key", "line.id", "--", "./plain"], "a script without a #! line"),
        (["--key", "line.id", "--", "./lost"], "/no/such/interpreter"),
        (["--key", "line.id[", "--", "cat"], "not a JMESPath expression"),
        (["--key", "line.items[].id", "--", "cat"], "projection"),
        (
            ["--key", "id", "--", "cat"],
            "key='id' does not start with line, which is the parsed line; write key='line.id'",
        ),
        (["--key", "line.id", "--", "echo", "{id}"], "write {line.id}"),
        (["--key", "id", "--call", "json:loads"], "key='id' names no parameter of loads(s); write key='s.id'"),
        (["--key", "line.id", "--", "echo", "{id"], "literal braces twice, {{ and }}"),
        (["--key", "line.id", "--", "echo", '{"a": 1}'], "literal braces twice, {{ and }}"),
        (["--key", "line.id", "--", "{line.id}"], "must be the same for every line"),
        (["--key", "line.id", "--call", "m:f", "--", "cat"], "not both"),
        (["--key", "line.id", "--call", "m"], "module:function"),
        (["--key", "line.id", "--call", "no_such_module:f"], "cannot be imported"),
        (["--key", "line.id", "--call", "json:no_such"], "has no function no_such"),
        (["gone.ndjson", "--key", "line.id", "--", "cat"], "gone.ndjson: no such file"),
        ([".", "--key", "line.id", "--", "cat"], "a directory"),
        (["in.ndjson", "--key", "line.id", "--rejects", "in.ndjson", "--", "cat"], "that is an input file"),
        (["in.ndjson", "--key", "line.id", "--rejects", "no/such/folder", "--", "cat"], "cannot be written"),
        (["--", "cat"], "--key"),
    ],
)
def test_a_usage_error_is_told_before_anything_is_claimed(cli, arguments, told):
    cli.write("in.ndjson", {"id": 1})
    (cli.folder / "plain").write_text("echo hi\n")
    (cli.folder / "lost").write_text("#!/no/such/interpreter\n")
    for name in ("plain", "lost"):
        (cli.folder / name).chmod(0o755)
    result = cli.run("pipe", *arguments, input=b'{"id": 1}\n')
    assert result.returncode == 2
    assert told in result.stderr
    assert not (cli.folder / "onceward.db").exists()


# --- operators --------------------------------------------------------------------------------------------------------


def test_ls_shows_each_record_with_what_became_of_it(held):
    told = held.run("ls").stdout.decode()
    assert len(told.splitlines()) == 6
    said = (r'\{"receipt":7\}', "card declined", r"lease lapsed \d+ s ago", "lease ends in")
    assert [one for one in said if not re.search(one, told)] == []


def test_ls_filters_by_prefix_status_age_and_limit(held):
    def records(*options):
        return [json.loads(line) for line in held.run("ls", "--json", *options).stdout.splitlines()]

    def keys(*options):
        return [record["key"] for record in records(*options)]

    assert keys() == ["n:a", "n:lapsed", "n:live", "n:p", "n:r"]
    assert keys("--prefix", "n:l") == ["n:lapsed", "n:live"]
    assert keys("--status", "parked", "--status", "released") == ["n:p", "n:r"]
    assert keys("--status", "lapsed") == ["n:lapsed"]
    assert keys("--status", "parked", "--newer-than", "1h") == ["n:p"]
    assert keys("--status", "parked", "--older-than", "10m") == []
    assert keys("--limit", "2") == ["n:a", "n:lapsed"]
    (record,) = records("--prefix", "n:a")
    assert list(record) == list(onceward.Record._fields)
    assert record["result"] == '{"receipt":7}'


def test_ls_refuses_a_status_that_there_is_not(held):
    assert held.run("ls", "--status", "done").returncode == 2
    for duration in ("1w", "99999d"):
        told = held.run("ls", "--older-than", duration, "--store", "sqlite:///none.db")
        assert (told.returncode, told.stdout) == (2, b""), told
        assert "--older-than" in told.stderr or "older_than" in told.stderr


def test_ls_ends_quietly_when_its_reader_does(cli):
    once = cli.once()
    for number in range(600):
        once.acquire(f"a-rather-long-key-so-that-the-pipe-fills-{number:0100}").complete("x" * 50)
    once.close()
    process = cli.start("ls", "--json")
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 141


def test_a_key_or_a_ledger_that_there_is_not_is_an_error_of_one_line(held):
    for store, said in ((), "no such key"), (("--store", "sqlite:///none.db"), "there is no ledger at"):
        for command in ("show", "clear", "unpark", "park"):
            result = held.run(command, "n:nobody", *store)
            assert (result.returncode, result.stderr.count("\n"), said in result.stderr) == (1, 1, True)
    for command in ("ls", "stats", "purge"):
        assert "there is no ledger at" in held.run(command, *store).stderr
    assert not (held.folder / "none.db").exists()


def test_the_store_is_taken_from_the_environment_unless_option_names_one(held):
    held.env["ONCEWARD_STORE"] = "sqlite:///other.db"
    assert "other.db" in held.run("stats").stderr
    assert held.run("stats", "--store", "sqlite:///onceward.db").returncode == 0


def test_clear_and_park_of_a_live_or_completed_key_need_yes_where_nobody_can_be_asked(held):
    for command, key in (("clear", "n:live"), ("park", "n:live"), ("clear", "n:a")):
        refused = held.run(command, key)
        assert refused.returncode == 1
        assert "--yes" in refused.stderr
    assert json.loads(held.run("show", "n:live", "--json").stdout)["status"] == "IN_PROGRESS"
    held.run("park", "n:live", "--yes", "--reason", os.fsdecode(b"gone mad\xff"))
    record = json.loads(held.run("show", "n:live", "--json").stdout)
    assert (record["status"], record["error"]) == ("PARKED", "gone mad\\udcff")
    assert "cleared" in held.run("clear", "n:a", "--yes").stdout.decode()
    assert held.run("show", "n:a").returncode == 1


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", True), (b"y\n", False)])
def test_clear_asks_about_a_live_claim_on_a_terminal(held, answer, left):
    controller, terminal = pty.openpty()
    process = held.start("clear", "n:live", stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    told = b""
    while b"?" not in told and b"[y/N]" not in told:
        assert wait([controller], 20)
        told += os.read(controller, 4096)
    os.write(controller, answer)
    process.wait(60)
    os.close(controller)
    assert b"a worker holds this key" in told
    assert process.returncode == (1 if left else 0)
    assert (held.run("show", "n:live").returncode == 0) is left


def test_show_tells_of_steps_and_retry_forgets_one_and_those_after_it(cli):
    once = cli.once(name="n")
    claim = once.acquire("s")
    for name in ("charge", ("mail", 1)):
        claim.step(name, dict, sent=7)
    claim.step("report", lambda: "x" * 20_000)
    claim.complete()
    once.close()
    told = cli.run("show", "n:s").stdout.decode()
    (kept,) = re.findall(r"report: made .* ms: its result is in the record (n:step-.*)", told)
    assert "xxxx" in cli.run("show", kept).stdout.decode()
    assert re.search(r"steps +charge: made .*, attempt 1, .* ms: \{\"sent\":7\}\n +\(mail,1\): made", told)
    wrong = cli.run("retry", "n:s", "--from", "post")
    assert wrong.returncode == 1
    assert "no step 'post'. Recorded are: 'charge', '(mail,1)', 'report'" in wrong.stderr
    assert cli.run("retry", "n:s", "--from", "(mail,1)").returncode == 0
    left = json.loads(cli.run("show", "n:s", "--json").stdout)
    assert left["status"] == "RELEASED"
    assert [step["name"] for step in json.loads(left["steps"])] == ["charge"]
    assert cli.run("show", kept).returncode == 1, "it went with its step"


def test_park_stops_and_unpark_lets_go(held):
    assert held.run("park", "n:r").returncode == 0
    assert "cannot be parked" in held.run("park", "n:a").stderr
    assert json.loads(held.run("unpark", "n:r", "--json").stdout)["status"] == "RELEASED"
    assert "is not parked" in held.run("unpark", "n:r").stderr
    refused = held.run("unpark", "n:a", "--to", "orders")
    assert (refused.returncode, "n:a: it is COMPLETED and is not parked" in refused.stderr) == (1, True)


def test_purge_deletes_what_has_expired(cli):
    once = cli.once()
    once.acquire("old", lease=0.05, retention=0.05).complete()
    time.sleep(0.1)
    once.close()
    assert json.loads(cli.run("purge", "--json").stdout) == {"purged": 1}
    assert cli.run("purge").stdout == b"0 expired record(s) deleted\n"


def test_stats_count_by_status(held):
    counts = json.loads(held.run("stats", "--json").stdout)
    shown = {name: counts[name] for name in ("total", "COMPLETED", "PARKED", "RELEASED", "lapsed")}
    assert shown == {"total": 5, "COMPLETED": 1, "PARKED": 1, "RELEASED": 1, "lapsed": 1}
    assert "COMPLETED" in held.run("stats").stdout.decode()


# --- finding ----------------------------------------------------------------------------------------------------------


def test_ls_counts_each_namespace_and_tells_when_it_was_last_written_to(held):
    once = held.once()
    once.acquire("a", name="shop.old_name").complete()
    time.sleep(1.1)
    for key in ("a", "b"):
        once.acquire(key, name="shop.new_name").complete()
    once.close()
    head, *rows = [line.split() for line in held.run("ls", "--namespaces").stdout.decode().splitlines()]
    assert head == ["RECORDS", "LAST", "WRITE", "NAMESPACE"]
    assert {row[-1]: row[0] for row in rows} == {"n": "5", "shop.new_name": "2", "shop.old_name": "1"}
    spaces = [
        json.loads(line) for line in held.run("ls", "--namespaces", "--prefix", "shop.", "--json").stdout.splitlines()
    ]
    assert [one["namespace"] for one in spaces] == ["shop.new_name", "shop.old_name"]
    assert 1 < spaces[0]["last_write"] - spaces[1]["last_write"] < 30
    assert held.run("ls", "--namespaces", "--limit", "3").returncode == 2


def recorded(cli, *keys):
    """Write completed records under keys as they stand in the ledger."""
    once = cli.once()
    for key in keys:
        drive(once.store.insert(claim_of(key, status="COMPLETED", result="1", lease=0.0, keep=None)), once.store)
    once.close()


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("8e03978e-40d5", "shop.api:8e03978e-40d5:alice"),
        ("order:42", 'shop.api:"order:42":*'),
        ("7", "n:7"),
        ("tuple", "n:(tuple,2)"),
        ("x" * 300, f"{ledger_key('n', 'x' * 300)}:*"),
    ],
)
def test_show_finds_a_record_by_the_clients_own_key(cli, given, key):
    recorded(cli, key, "n:another", "shop.api:another:alice", "n:8e03978e-40d5-2", 'n:"tuple,2"', "n:425")
    assert json.loads(cli.run("show", given, "--json").stdout)["key"] == key


def test_show_lists_the_keys_when_several_records_have_the_clients_key(cli):
    recorded(cli, "api:k1:alice", 'api:k1:"bob $(id)"', "api:k11:alice")
    result = cli.run("show", "k1")
    assert (result.returncode, result.stdout) == (1, b"")
    commands = ["  onceward show 'api:k1:\"bob $(id)\"'", "  onceward show api:k1:alice"]
    assert result.stderr.splitlines()[1:] == commands
    assert b"COMPLETED" in cli.run("show", "api:k1:alice").stdout
    (cli.folder / "onceward.db").rename(cli.folder / "an other.db")
    told = cli.run("show", "k1", "--store", "sqlite:///an other.db").stderr.splitlines()[1:]
    assert told == [f"{command} --store 'sqlite:///an other.db'" for command in commands]


@each(
    ("key", "status", "said", "then", "command"),
    [
        ("n:a", "COMPLETED", '{"receipt":7}', "nothing: duplicates get this result", "clear n:a --yes"),
        ("n:r", "RELEASED", "card declined", "deliver it again to run it", "park n:r"),
        ("n:p", "PARKED", "no such account", "fix the cause", "unpark n:p"),
        ("n:lapsed", "IN_PROGRESS", "its worker has vanished", "to take it over", "park n:lapsed"),
        ("n:live", "IN_PROGRESS", "", "wait for its worker", "park n:live --yes"),
    ],
)
def test_show_tells_all_of_a_record_and_a_command_for_what_can_be_done_next(held, key, status, said, then, command):
    told = held.run("show", key, "--store", "sqlite:///./onceward.db").stdout.decode()
    assert [part for part in (status, said) if part not in told] == []
    (line,) = [line for line in told.splitlines() if line.startswith("next ")]
    assert then in line
    program, *arguments = shlex.split(line.split("`")[1])
    assert program == "onceward"
    assert " ".join(arguments).replace(" --store sqlite:///./onceward.db", "") == command
    assert held.run(*arguments).returncode == 0


# --- arguments that fit nothing ---------------------------------------------------------------------------------------

BYTES = os.fsdecode(b"r\xff")


@each(
    ("arguments", "status", "told"),
    [
        (["pipe", "--key", "(" * 3000, "--", "true"], 2, "is nested too deeply"),
        (["pipe", "--key", "line.id", "--name", BYTES, "--", "true"], 2, "give a name in UTF-8"),
        (["ls", "--prefix", BYTES], 2, "--prefix r\\udcff: give it in UTF-8"),
        (["ls", "--after", BYTES], 2, "--after r\\udcff: give it in UTF-8"),
        (["show", BYTES], 1, "no such key"),
        (["park", "n:r", "--reason", BYTES], 0, ""),
    ],
)
def test_an_argument_that_fits_nothing_is_one_clear_line(held, arguments, status, told):
    result = held.run(*arguments, input=b'{"id": 1}\n')
    assert (result.returncode, told in " ".join(result.stderr.split())) == (status, True), result.stderr


@pytest.mark.parametrize(
    ("stack", "memory", "status", "told"), [(28, 3, 0, "ran 20"), (31, 1, 1, "raise ulimit -u")], ids=["few", "none"]
)
def test_pipe_makes_do_with_the_threads_that_there_are(cli, stack, memory, status, told):
    limit = f"import resource, threading; threading.stack_size(1 << {stack}); resource.setrlimit(resource.RLIMIT_AS, ({memory} << 30, -1))"
    cli.write("in.ndjson", *({"id": n} for n in range(20)))
    run = [
        sys.executable,
        "-c",
        f"{limit}; from onceward.cli import main; main()",
        "pipe",
        "in.ndjson",
        "--key",
        "line.id",
    ]
    done = subprocess.run(
        [*run, "--jobs", "500", "--", "sleep", "1"], cwd=cli.folder, env=cli.env, capture_output=True, text=True
    )
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (status, True, False), done.stderr


# --- settling by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["n:p", "n:r", "n:lapsed"])
def test_settle_completes_a_key_with_a_result(held, key):
    asked = held.run("settle", key, "--result", '{"receipt": 7}')
    assert (asked.returncode, asked.stdout) == (1, b"")
    assert "Pass --yes to do it anyway: duplicates get {" in asked.stderr
    done = held.run("settle", key, "--result", '{"receipt": 7}', "--yes", "--retention", "forever")
    assert done.stdout.decode() == f'{key}: completed by hand; duplicates get {{"receipt":7}}\n'
    told = json.loads(held.run("show", key, "--json").stdout)
    assert (told["status"], told["result"], told["worker"]) == ("COMPLETED", '{"receipt":7}', "by hand")
    assert told["expires_at"] is None


@each(
    ("key", "options", "status", "told"),
    [
        ("n:live", ["--result", "1"], 1, "holds this key"),
        ("n:a", ["--result", "1"], 1, "it is COMPLETED and cannot be settled"),
        ("n:x", ["--result", "1"], 1, "no such"),
        ("n:p", ["--result", "{"], 2, ""),
        ("n:p", ["--result", "NaN"], 2, ""),
        ("n:p", ["--result", "1", "--retention", "0"], 2, ""),
    ],
)
def test_settle_refuses_a_key_that_is_over_and_what_is_no_result_or_no_time(held, key, options, status, told):
    refused = held.run("settle", key, "--yes", *options)
    assert (refused.returncode, told in refused.stderr) == (status, True), refused.stderr
    assert json.loads(held.run("show", "n:p", "--json").stdout)["status"] == "PARKED"
