"""The operators' commands on a DynamoDB table: real processes, a real server, and damaged records."""

import base64
import json
import time
import zlib

import pytest

from commands.command_line import Cli
from onceward import Once, StoreError
from onceward.aws.templates import FORMS
from onceward.stores.contract import Damaged, DamagedRecord
from servers.needs import numbers
from stores.templates import QUEUE
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


def rows(result):
    """The keys of `ls --json`."""
    return [json.loads(line)["key"] for line in result.stdout.splitlines()]


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
        (["--print", "terraform"], "cannot be made by CloudFormation"),
        (["--store", "memory:", "--print", "sql"], "cannot print the SQL that makes it"),
        (["--ttl"], "--ttl means nothing for this ledger"),
        (["--function", "charge", "--print", "sql"], "are for a ledger in DynamoDB"),
        (["--store", "dynamodb://orders", "--pitr"], "--pitr, --kms-key and --function are for --print"),
        ([*TERRAFORM, "--ttl"], "--ttl is for a table that exists"),
        ([*TERRAFORM, "--queue", QUEUE], "--queue and --alarms are for --function"),
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


def test_a_purge_deletes_no_more_than_it_is_told(cli, url, proxy):
    once = Once(url)
    for number in range(10):
        once.acquire(number, lease=3, retention=3).complete()
    once.acquire("kept").complete()
    once.close()
    proxy.date = lambda: time.time() + 60
    limited = ("purge", "--store", url, "--limit", 4)
    first = cli.run(*limited)
    assert first.stdout == b"4 record(s) deleted\n"
    assert "there may be more: run it again" in first.stderr
    until(lambda: cli.run(*limited).stdout.startswith(b"0 "))
    assert rows(cli.run("ls", "--store", url, "--json")) == ["claim:kept"]


@each("command", [["ls"], ["stats"], ["purge"], ["show", "k"], ["clear", "k"], ["park", "k"]])
def test_a_table_that_there_is_not_is_told_with_the_command_that_makes_it(cli, fresh, command):
    one_line(cli.run(*command, "--store", fresh), "onceward init")


DAMAGES = {"a fence of text": {"fence": {"S": "x"}}, "a result that does not unfold": {"result": {"B": "AAAA"}}}


@pytest.fixture(params=DAMAGES)
def once(request, url, table, dynoxide):
    """A ledger with five keys of which one is damaged."""
    made = Once(url, retention=60, lease=3)
    for number in range(5):
        made.using(name="n").run(f"k{number}", lambda number=number: number)
    (item,) = [item for item in dynoxide.items(table) if item["key"]["S"] == "n:k2"]
    dynoxide.ask("PutItem", TableName=table, Item={**item, **DAMAGES[request.param]})
    yield made
    made.close()


def test_its_handler_does_not_run_and_it_harms_no_other_until_it_is_cleared(once):
    mine = once.using(name="n")
    with pytest.raises(StoreError, match=r"n:k2.*clear the key") as caught:
        mine.run("k2", pytest.fail)
    assert not caught.value.transient
    assert mine.run("k3", pytest.fail) == 3
    outcomes = once.batch(lambda order: order, key="order", name="n").run([f"k{number}" for number in range(6)])
    assert [one.status for one in outcomes] == ["replayed"] * 2 + ["failed"] + ["replayed"] * 2 + ["done"]
    assert isinstance(outcomes[2].error, DamagedRecord)
    assert isinstance(once.ledger.clear("n:k2"), Damaged)
    assert mine.run("k2", lambda: "again") == "again"
    assert sorted(record.key for record, _ in once.ledger.records()) == [f"n:k{number}" for number in range(6)]


def test_the_commands_go_on_and_name_it(cli, once, url):
    cli.env["ONCEWARD_STORE"] = url
    listed = cli.run("ls")
    assert [listed.returncode, b"n:k4" in listed.stdout, b"n:k2" in listed.stdout] == [0, True, False]
    assert "skipped n:k2, which cannot be read" in listed.stderr
    told = [json.loads(line) for line in cli.run("ls", "--json").stdout.splitlines()]
    assert [one["key"] for one in told if "damaged" in one] == ["n:k2"]
    assert sorted(one["key"] for one in told if "damaged" not in one) == ["n:k0", "n:k1", "n:k3", "n:k4"]
    counted = cli.run("stats", "--json")
    stats = json.loads(counted.stdout)
    assert (stats["total"], stats["COMPLETED"], stats["damaged"]) == (4, 4, 1)
    assert "n:k2" in counted.stderr
    assert cli.run("show", "n:k2").returncode == 1
    assert "DynamoDB has no index of chains" in cli.run("show", "n:k0", "--chain").stderr
    assert b"could not be read" in cli.run("clear", "n:k2").stdout
    assert cli.run("ls").stderr == ""


def test_an_expired_one_does_not_end_a_purge(url, table, dynoxide):
    once = Once(url, retention=5, lease=3)
    for number in range(3):
        once.using(name="n").run(f"k{number}", int)
    for item in dynoxide.items(table):
        damage = {"fence": {"S": "x"}} if item["key"]["S"] == "n:k1" else {}
        dynoxide.ask("PutItem", TableName=table, Item={**item, "expires_at": {"N": "1"}, **damage})
    (purged,) = list(once.ledger.purging())
    assert (purged.deleted, [one.key for one in purged.damaged]) == (2, ["n:k1"])
    assert [item["key"]["S"] for item in dynoxide.items(table)] == ["n:k1"]


def test_what_is_told_of_it_has_nothing_of_its_result(url, table, dynoxide):
    secret = base64.b64encode(zlib.compress(b"4111 1111 1111 1111 \xff" * 50)).decode()
    once = Once(url)
    once.using(name="n").run("k", int)
    (item,) = dynoxide.items(table)
    dynoxide.ask("PutItem", TableName=table, Item={**item, "result": {"B": secret}})
    with pytest.raises(StoreError) as caught:
        once.using(name="n").run("k", pytest.fail)
    assert "4111" not in str(caught.value)
