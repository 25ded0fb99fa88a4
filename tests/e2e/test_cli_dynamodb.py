"""The operators' commands on a DynamoDB table: real processes against a real server."""

import json
import re
import signal
import time

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.aws.templates import FORMS
from servers.needs import numbers
from servers.proxy import Fault
from stores.templates import QUEUE, TOPIC
from tables import each
from waiting import until

_NUMBERS = numbers()


@pytest.fixture
def cli(tmp_path, aws):
    return Cli(tmp_path)


@pytest.fixture
def fresh(proxy):
    """The URL of a table that there is not."""
    return f"dynamodb://cli-{next(_NUMBERS)}?endpoint={proxy.url}"


@pytest.fixture
def held(cli, url):
    """A ledger with a completed and a released key, which ONCEWARD_STORE names."""
    cli.env["ONCEWARD_STORE"] = url
    once = Once(url, name="n")
    once.acquire("a").complete({"receipt": 7})
    once.acquire("r").release("card declined")
    once.close()
    return cli


@pytest.fixture
def many(cli, url):
    """A ledger with 40 keys of one name and 20 of another."""
    cli.env["ONCEWARD_STORE"] = url
    for name, count in (("m", 40), ("other", 20)):
        once = Once(url, name=name)
        for number in range(count):
            once.acquire(number).complete(number)
        once.close()
    return cli


def rows(result):
    """The records of `ls --json`, and the token to go on with, or None."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    tokens = [line.pop("next") for line in lines if "next" in line]
    return [line["key"] for line in lines if line], tokens[0] if tokens else None


def one_line(result, *told):
    """Assert that the command has failed with one line that says this."""
    assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
    assert [one for one in told if one not in result.stderr] == []


def test_init_switches_ttl_on_in_somebody_elses_table_only_when_told_to(cli, dynoxide, proxy):
    table = dynoxide.table(f"cli-{next(_NUMBERS)}")
    dynoxide.ask("PutItem", TableName=table, Item={"key": {"S": "theirs"}, "expires_at": {"N": "1"}})
    url = f"dynamodb://{table}?endpoint={proxy.url}"
    one_line(cli.run("init", "--store", url), "its TTL is off", "`onceward init --ttl`")
    told = json.loads(cli.run("init", "--store", url, "--ttl", "--json").stdout)
    assert [part["made"] for part in told["parts"]][::2] == [False, True]


TERRAFORM = ("--store", "dynamodb://orders", "--print", "terraform")


@each("kind", FORMS)
def test_init_prints_code_without_credentials_or_network(cli, kind):
    for name in [name for name in cli.env if name.startswith("AWS_")]:
        del cli.env[name]
    result = cli.run("init", "--store", "dynamodb://orders", "--print", kind, "--pitr")
    assert result.returncode == 0
    assert '"orders"' in result.stdout.decode()
    assert result.stderr == ""


@each(
    ("arguments", "told"),
    [
        (["--store", "dynamodb://orders", "--print", "pulumi"], "there are cloudformation, terraform, sam"),
        (["--print", "terraform"], "SQLite's ledger is printed as sql"),
        (["--store", "memory:", "--print", "sql"], "cannot print how it is made by another tool"),
        (["--ttl"], "--ttl means nothing for this ledger"),
        (["--function", "charge", "--print", "sql"], "are for a ledger in DynamoDB"),
        (["--store", "dynamodb://orders", "--pitr"], "--pitr, --kms-key and --function are for --print"),
        ([*TERRAFORM, "--ttl"], "--ttl is for a table that exists"),
        ([*TERRAFORM, "--queue", "arn:aws:sqs:x"], "give its ARN, and --function"),
        ([*TERRAFORM, "--function", "charge:live"], "give the function's name alone"),
        ([*TERRAFORM, "--kms-key", "alias/orders"], "give the ARN of a key"),
        ([*TERRAFORM, "--function", "f", "--queue", TOPIC], "give its ARN"),
        ([*TERRAFORM, "--function", "f", "--alarms", QUEUE], "give its ARN"),
    ],
)
def test_init_refuses_what_there_is_not(cli, arguments, told):
    result = cli.run("init", *arguments)
    assert result.returncode == 2
    assert told in result.stderr
    assert list(cli.folder.iterdir()) == []


def test_init_makes_an_sqlite_file_with_its_schema(cli):
    first, second = (cli.run("init").stdout.decode() for _ in range(2))
    path = cli.folder / "onceward.db"
    assert first == f"made: file {path}\nmade: its schema\n"
    assert second == f"was there: file {path}\nwas there: its schema\n"
    assert cli.run("init", "--store", "memory:").stdout == b"memory: needs nothing made\n"


def test_a_list_cut_short_says_how_to_go_on_in_words_that_can_be_pasted(many):
    result = many.run("ls", "--limit", 5)
    (token,) = re.findall(r"go on with the same options and --after=(\S+)\n", result.stderr)
    assert re.fullmatch(r"[\w%:/@,+=.~-]+", token)
    rest = many.run("ls", f"--after={token}")
    assert (len(rest.stdout.splitlines()), rest.stderr) == (56, "")
    one_line(many.run("ls", "--after", "yesterday"), "is not the place where an earlier page of this ledger ended")


def interrupted(cli, proxy, when, *arguments):
    """Press ctrl-C while a command waits for such a request."""
    waiting = []

    def rule(seen):
        if when(seen):
            waiting.append(seen)
            return Fault(delay=2.0)

    proxy.rule = rule
    process = cli.start(*arguments)
    until(lambda: waiting)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    proxy.clear()
    assert process.returncode == 130
    return out, err.decode()


def test_an_interrupted_count_tells_what_was_counted_and_how_to_go_on(many, proxy):
    many.env["PYTHONPATH"] = f"{many.folder}:{many.env['PYTHONPATH']}"
    (many.folder / "sitecustomize.py").write_text("import onceward.stores.ledger_reader as it\nit.PAGE = 20\n")
    second = lambda seen: seen.action == "Scan" and "ExclusiveStartKey" in seen.body
    out, err = interrupted(many, proxy, second, "stats", "--json")
    counts = json.loads(out)
    assert counts["total"] == 20
    assert f"stopped; these are the counts of a part; go on with the same options and --after={counts['next']}" in err
    assert json.loads(many.run("stats", "--json", f"--after={counts['next']}").stdout)["total"] == 40


def test_a_purge_deletes_no_more_than_it_is_told(cli, url, proxy):
    once = Once(url)
    for number in range(10):
        once.acquire(number, lease=3, retention=3).complete()
    once.acquire("kept").complete()
    once.close()
    proxy.date = lambda: time.time() + 60
    limited = ("purge", "--store", url, "--limit", 4)
    first = cli.run(*limited)
    assert first.stdout == b"4 expired record(s) deleted\n"
    assert "there may be more: run it again" in first.stderr
    out, err = interrupted(cli, proxy, lambda seen: seen.action == "DeleteItem", "purge", "--store", url, "--json")
    assert (json.loads(out)["purged"] <= 1, err) == (True, "onceward: stopped\n")
    proxy.date = lambda: time.time() + 60  # the interrupt has cleared it
    until(lambda: cli.run(*limited).stdout.startswith(b"0 "))
    assert rows(cli.run("ls", "--store", url, "--json"))[0] == ["claim:kept"]


@each("command", [["ls"], ["stats"], ["purge"], ["show", "k"], ["clear", "k"], ["park", "k"]])
def test_a_table_that_there_is_not_is_told_with_the_command_that_makes_it(cli, fresh, command):
    one_line(cli.run(*command, "--store", fresh), "onceward init")
