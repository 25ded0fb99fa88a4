"""The command line as others see it: its help, its usage errors, and the commands for operators."""

import json
import os
import re
import shlex
import sqlite3
import time
from contextlib import closing, suppress

import pytest

from commands.command_line import Cli
from onceward import LeaseLost
from tables import each
from waiting import until


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


@each(
    ("arguments", "told"),
    [
        (["--key", "line.id"], "no command"),
        (["cat", "--key", "line.id"], "no command"),
        (["--key", "line.id", "--", "no-such-program"], "no-such-program: no such command"),
        (["--key", "id", "--", "cat"], "which is the parsed line; write key='line.id'"),
        (["--key", "line.id", "--", "echo", "{id}"], "write {line.id}"),
        (["--key", "line.id", "--", "echo", '{"a": 1}'], "literal braces twice, {{ and }}"),
        (["--key", "line.id", "--", "{line.id}"], "must be the same for every line"),
        (["--key", "line.id", "--call", "no_such_module:f"], "cannot be imported"),
        (["--key", "line.id", "--call", "json:no_such"], "has no no_such"),
        (["gone.ndjson", "--key", "line.id", "--", "cat"], "gone.ndjson: no such file"),
        (["in.ndjson", "--key", "line.id", "--rejects", "in.ndjson", "--", "cat"], "that is an input file"),
        (["--", "cat"], "--key"),
    ],
)
def test_a_usage_error_is_told_before_anything_is_claimed(cli, arguments, told):
    cli.write("in.ndjson", {"id": 1})
    (cli.folder / "plain").write_text("echo hi\n")
    (cli.folder / "plain").chmod(0o755)
    result = cli.run("pipe", *arguments, input=b'{"id": 1}\n')
    assert result.returncode == 2
    assert told in result.stderr
    assert not (cli.folder / "onceward.db").exists()


def test_ls_shows_each_record_with_what_became_of_it_and_stats_count_them(held):
    told = held.run("ls").stdout.decode()
    assert len(told.splitlines()) == 6
    said = (r'\{"receipt":7\}', "card declined", r"its lease ended \d+ s ago", "its lease ends in")
    assert [one for one in said if not re.search(one, told)] == []
    counts = json.loads(held.run("stats", "--json").stdout)
    shown = {name: counts[name] for name in ("total", "COMPLETED", "PARKED", "RELEASED", "lapsed")}
    assert shown == {"total": 5, "COMPLETED": 1, "PARKED": 1, "RELEASED": 1, "lapsed": 1}


def test_ls_filters_by_prefix_status_age_and_limit(held):
    def keys(*options):
        return [json.loads(line)["key"] for line in held.run("ls", "--json", *options).stdout.splitlines()]

    assert keys() == ["n:a", "n:lapsed", "n:live", "n:p", "n:r"]
    assert keys("--prefix", "n:l") == ["n:lapsed", "n:live"]
    assert keys("--status", "parked", "--status", "released") == ["n:p", "n:r"]
    assert keys("--status", "lapsed") == ["n:lapsed"]
    assert keys("--status", "parked", "--newer-than", "1h") == ["n:p"]
    assert keys("--status", "parked", "--older-than", "10m") == []
    assert keys("--limit", "2") == ["n:a", "n:lapsed"]
    for wrong in (("--status", "done"), ("--older-than", "1w")):
        refused = held.run("ls", *wrong)
        assert (refused.returncode, refused.stdout) == (2, b"")


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
    held.env["ONCEWARD_STORE"] = "sqlite:///none.db"
    for command in ("ls", "stats", "purge"):
        assert "there is no ledger at" in held.run(command).stderr
        assert held.run(command, "--store", "sqlite:///onceward.db").returncode == 0
    assert not (held.folder / "none.db").exists()


def test_clear_and_park_of_a_live_or_completed_key_need_yes(held):
    with closing(sqlite3.connect(held.folder / "onceward.db")) as ledger, ledger:  # as a later version may
        ledger.execute("UPDATE onceward SET status = 'ARCHIVED' WHERE key = 'n:r'")
    for command, key in (("clear", "n:live"), ("park", "n:live"), ("clear", "n:a"), ("clear", "n:r")):
        refused = held.run(command, key)
        assert (refused.returncode, "--yes" in refused.stderr) == (1, True)
    held.run("park", "n:live", "--yes", "--reason", os.fsdecode(b"gone mad\xff"))
    record = json.loads(held.run("show", "n:live", "--json").stdout)
    assert (record["status"], record["error"]) == ("PARKED", "gone mad\\udcff")
    assert b"cleared" in held.run("clear", "n:a", "--yes").stdout


def test_show_tells_of_steps_and_retry_forgets_one_and_those_after_it(cli):
    once = cli.once(name="n")
    claim = once.acquire("s")
    for name in ("charge", ("mail", 1)):
        claim.step(name, dict, sent=7)
    claim.complete()
    once.close()
    told = cli.run("show", "n:s").stdout.decode()
    assert re.search(r"steps +charge: made .*, attempt 1, .* ms: \{\"sent\":7\}\n +\(mail,1\): made", told)
    assert "no step 'post'. Recorded are: 'charge', '(mail,1)'" in cli.run("retry", "n:s", "--from", "post").stderr
    assert cli.run("retry", "n:s", "--from", "(mail,1)").returncode == 0
    left = json.loads(cli.run("show", "n:s", "--json").stdout)
    assert left["status"] == "RELEASED"
    assert [step["name"] for step in json.loads(left["steps"])] == ["charge"]


def test_park_stops_and_unpark_lets_go(held):
    assert held.run("park", "n:r").returncode == 0
    assert "cannot be parked" in held.run("park", "n:a").stderr
    assert json.loads(held.run("unpark", "n:r", "--json").stdout)["status"] == "RELEASED"
    assert "is not parked" in held.run("unpark", "n:r").stderr


def test_purge_deletes_what_has_expired(cli):
    once = cli.once(lease=3, retention=3)
    once.run("old", int)
    once.close()
    until(lambda: json.loads(cli.run("purge", "--json").stdout) == {"purged": 1})
    assert cli.run("purge").stdout == b"0 record(s) deleted\n"


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
    assert "it is completed, so it cannot be settled" in held.run("settle", key, "--result", "1").stderr


@each(
    ("key", "options", "status", "told"),
    [
        ("n:live", ["--result", "1"], 1, "holds this key"),
        ("n:a", ["--result", "1"], 1, "it is COMPLETED and cannot be settled"),
        ("n:p", ["--result", "{"], 2, ""),
        ("n:p", ["--result", "NaN"], 2, ""),
    ],
)
def test_settle_refuses_a_key_that_is_over_and_what_is_no_result_or_no_time(held, key, options, status, told):
    refused = held.run("settle", key, "--yes", *options)
    assert (refused.returncode, told in refused.stderr) == (status, True), refused.stderr
    assert json.loads(held.run("show", "n:p", "--json").stdout)["status"] == "PARKED"
