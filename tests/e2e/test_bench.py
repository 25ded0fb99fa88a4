"""`onceward bench` as a person runs it."""

import json
import signal

import pytest

from command_line import Cli
from onceward import Once
from servers import numbers
from waiting import until

_NUMBERS = numbers()


@pytest.fixture
def cli(tmp_path, aws):
    return Cli(tmp_path)


@pytest.fixture
def ledger(cli):
    """A ledger with one record, as its URL."""
    once = Once(f"sqlite:///{cli.folder}/ledger.db", name="mine")
    once.run("order-1", lambda: "paid")
    once.close()
    return "sqlite:///ledger.db"


def keys(cli, url):
    lines = [json.loads(line) for line in cli.run("ls", "--store", url, "--json").stdout.splitlines()]
    return [line["key"] for line in lines if "key" in line]


def test_it_prints_percentiles_and_a_verdict_and_leaves_nothing(cli, ledger):
    told = cli.run("bench", "--store", ledger, "--seconds", 1, "--rate", 40, "--yes")
    lines = told.stdout.decode().splitlines()
    assert lines[0].split() == ["times", "requests", "p50", "p90", "p99", "most"]
    assert [line.split()[0] for line in lines[1:5]] == ["claim", "complete", "duplicate", "batch"]
    assert "as in the docs: claim: 1.00 requests; the docs say 1" in lines
    assert "30 records deleted" in lines
    assert "writes up to 40 records" in told.stderr
    assert keys(cli, ledger) == ["mine:order-1"]


def test_without_consent_nothing_is_written(cli, ledger):
    told = cli.run("bench", "--store", ledger)
    assert told.returncode == 2
    assert told.stderr.endswith("nothing was written: pass --yes to agree\n")
    assert keys(cli, ledger) == ["mine:order-1"]


def test_a_ledger_that_is_not_there_is_not_made(cli):
    told = cli.run("bench", "--store", "sqlite:///none.db", "--yes")
    assert told.returncode == 2
    assert "there is no ledger" in told.stderr
    assert list(cli.folder.iterdir()) == []


def test_an_interrupted_run_deletes_what_it_wrote(cli, ledger):
    process = cli.start("bench", "--store", ledger, "--seconds", 60, "--yes")
    until(lambda: len(keys(cli, ledger)) > 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"records deleted" in err
    assert keys(cli, ledger) == ["mine:order-1"]


def test_a_table_is_timed_and_its_price_is_said(cli, dynoxide, proxy):
    table = dynoxide.table(f"bench-{next(_NUMBERS)}")
    url = f"dynamodb://{table}?endpoint={proxy.url}"
    told = cli.run("bench", "--store", url, "--seconds", 1, "--rate", 200, "--yes", "--json")
    answer = json.loads(told.stdout)
    assert {one["name"]: one["requests"] for one in answer["timed"]} == {
        "claim": 1.0,
        "complete": 1.0,
        "duplicate": 1.0,
        "batch": 2.0,
    }
    assert (answer["errors"], answer["left"], answer["deleted"]) == ({}, [], 150)
    assert "USD on demand" in told.stderr
    assert dynoxide.items(table) == []


def test_a_probe_is_told_as_more_requests(cli, dynoxide, proxy):
    table = dynoxide.table(f"bench-{next(_NUMBERS)}")
    url = f"dynamodb://{table}?endpoint={proxy.url}&probe=read"
    told = cli.run("bench", "--store", url, "--seconds", 1, "--rate", 40, "--yes")
    assert told.returncode == 1
    assert b"NOT AS IN THE DOCS: claim: 2.00 requests" in told.stdout


def test_a_postgresql_ledger_is_timed(cli, postgres15):
    url = f"{postgres15.url}?schema=bench_{next(_NUMBERS)}"
    assert cli.run("init", "--store", url).returncode == 0
    told = cli.run("bench", "--store", url, "--seconds", 1, "--rate", 200, "--yes", "--json")
    answer = json.loads(told.stdout)
    assert [
        verdict["says"] for verdict in answer["verdicts"] if not verdict["met"] and "requests;" in verdict["says"]
    ] == []
    assert (answer["errors"], answer["left"], answer["deleted"]) == ({}, [], 150)
