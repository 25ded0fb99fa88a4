"""The operators' commands on a DynamoDB table: real processes against a real server."""

import json
import re
import signal
import sqlite3
import time

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.aws.templates import FORMS
from onceward.stores.dynamodb import open_table
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing.clock import ManualClock
from servers.needs import free_port, numbers
from servers.proxy import Fault, Refuse
from stores.templates import KEY, QUEUE, TOPIC
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
    """A ledger with one key of each kind, which ONCEWARD_STORE names."""
    cli.env["ONCEWARD_STORE"] = url
    once = Once(url, name="n")
    claims = {key: once.acquire(key) for key in ("a", "r", "p", "live")}
    claims["a"].complete({"receipt": 7})
    claims["r"].release("card declined")
    claims["p"].park("no such account")
    once.close()
    return cli


@pytest.fixture
def many(cli, url):
    """A ledger with 40 keys of one name and 20 of another, read in pages of 7."""
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


# --- init -----------------------------------------------------------------------------------------------------------


def test_init_makes_the_table_and_the_second_time_says_it_was_there(cli, fresh):
    first, second = (cli.run("init", "--store", fresh) for _ in range(2))
    assert first.returncode == second.returncode == 0
    name = re.match(r"dynamodb://([\w-]+)", fresh)[1]
    told = f"table {name} (on demand, key key (S))", "index onceward_due", "TTL on expires_at"
    assert first.stdout.decode().splitlines() == [f"made: {part}" for part in told]
    assert second.stdout.decode().splitlines() == [f"was there: {part}" for part in told]
    Once(fresh).acquire("k").complete()


def test_init_tells_the_same_as_json(cli, fresh):
    told = json.loads(cli.run("init", "--store", fresh, "--json").stdout)
    assert [part["made"] for part in told["parts"]] == [True, True, True]


def test_init_refuses_a_table_with_another_key(cli, dynoxide, proxy):
    table = dynoxide.table(f"cli-{next(_NUMBERS)}", {"id": "N"})
    result = cli.run("init", "--store", f"dynamodb://{table}?endpoint={proxy.url}")
    assert result.returncode == 1
    assert "its key is id (N), but this ledger's key is key (S)" in result.stderr
    assert result.stderr.count("\n") == 1


def test_init_switches_ttl_on_in_somebody_elses_table_only_when_told_to(cli, dynoxide, proxy):
    table = dynoxide.table(f"cli-{next(_NUMBERS)}")
    dynoxide.ask("PutItem", TableName=table, Item={"key": {"S": "theirs"}, "expires_at": {"N": "1"}})
    url = f"dynamodb://{table}?endpoint={proxy.url}"
    refused = cli.run("init", "--store", url)
    assert refused.returncode == 1
    assert "its TTL is off" in refused.stderr
    assert "`onceward init --ttl`" in refused.stderr
    assert refused.stderr.count("\n") == 1
    told = cli.run("init", "--store", url, "--ttl")
    assert (told.returncode, told.stdout.decode().splitlines()[-1]) == (0, "made: TTL on expires_at")


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
        (
            ["--store", "memory:", "--print", "sql"],
            "cannot print how it is made by another tool. Use a store that can: ",
        ),
        (["--pitr"], "--pitr means nothing for this ledger"),
        (
            ["--store", "memory:", "--pitr"],
            "memory: cannot be made ahead of its first use. Use a store that can: dynamodb, ",
        ),
        (["--ttl"], "--ttl means nothing for this ledger"),
        (["--store", "dynamodb://orders", "--pitr"], "--pitr means nothing for this ledger"),
        (["--store", "dynamodb://orders", "--kms-key", KEY], "--function are for --print"),
        (["--store", "dynamodb://orders", "--ttl", "--print", "terraform"], "--ttl is for a table that exists"),
        (
            ["--store", "dynamodb://orders", "--queue", "arn:aws:sqs:x", "--print", "terraform"],
            "give its ARN, and --function",
        ),
        (["--store", "dynamodb://orders", "--queue", QUEUE, "--print", "terraform"], "give its ARN, and --function"),
        (["--store", "dynamodb://orders?blobs=s3://b/${x}", "--print", "terraform"], "a template cannot name it"),
        (["--function", "charge", "--print", "sql"], "are for a ledger in DynamoDB"),
        *(
            (
                ["--store", "dynamodb://orders", "--print", "terraform", "--function", name],
                "give the function's name alone",
            )
            for name in ("", "a b", "charge:live", "arn:aws:lambda:eu-west-1:111111111111:function:f", "x" * 65, 'x"')
        ),
        *(
            (["--store", "dynamodb://orders", "--print", "terraform", "--kms-key", key], "give the ARN of a key")
            for key in ("", "alias/orders", "arn:aws:kms:eu-west-1:111111111111:alias/orders", f"{KEY}\n")
        ),
        *(
            (["--store", "dynamodb://orders", "--print", "terraform", "--function", "f", *option], "give its ARN")
            for option in (["--queue", TOPIC], ["--alarms", QUEUE], ["--alarms", "arn:"])
        ),
    ],
)
def test_init_refuses_what_there_is_not(cli, arguments, told):
    result = cli.run("init", *arguments)
    assert result.returncode == 2
    assert told in result.stderr
    assert list(cli.folder.iterdir()) == []


def test_init_makes_an_sqlite_file_with_its_schema(cli):
    first, second = (cli.run("init") for _ in range(2))
    path = cli.folder / "onceward.db"
    assert first.stdout.decode() == f"made: file {path}\nmade: its schema\n"
    assert second.stdout.decode() == f"was there: file {path}\nwas there: its schema\n"
    assert cli.run("ls").returncode == 0


def test_init_makes_the_schema_in_a_database_of_somebody_else(cli):
    connection = sqlite3.connect(cli.folder / "onceward.db")
    connection.execute("CREATE TABLE payments (id)")
    connection.close()
    assert cli.run("init").stdout.decode().splitlines()[1] == "made: its schema"


def test_init_of_a_file_that_is_no_database_changes_nothing(cli):
    (cli.folder / "onceward.db").write_text("this is a letter, and a long one\n" * 50)
    result = cli.run("init")
    assert result.returncode == 1
    assert "not an SQLite database" in result.stderr
    assert (cli.folder / "onceward.db").read_text().startswith("this is a letter")


def test_init_of_a_ledger_in_memory_has_nothing_to_make(cli):
    assert cli.run("init", "--store", "memory:").stdout == b"memory: needs nothing made\n"


# --- looking and changing -------------------------------------------------------------------------------------------


def test_no_key_was_claimed_in_the_future(held):
    assert not re.search(r"^\w+ +\d+ +in ", held.run("ls").stdout.decode(), re.MULTILINE)


def test_ls_show_and_stats_tell_what_is_there(held):
    keys, token = rows(held.run("ls", "--json"))
    assert (sorted(keys), token) == (["n:a", "n:live", "n:p", "n:r"], None)
    assert rows(held.run("ls", "--json", "--status", "parked"))[0] == ["n:p"]
    assert '{"receipt":7}' in held.run("ls").stdout.decode()
    assert "card declined" in held.run("show", "n:r").stdout.decode()
    counts = json.loads(held.run("stats", "--json").stdout)
    assert (counts["total"], counts["IN_PROGRESS"], counts["lapsed"]) == (4, 1, 0)


# --- a part at a time -----------------------------------------------------------------------------------------------


def read_in_parts(cli, *options):
    """Go on with the token until there is none; the keys of each part."""
    parts, token = [], None
    while True:
        after = [] if token is None else [f"--after={token}"]
        keys, token = rows(cli.run("ls", "--json", *options, *after))
        parts.append(keys)
        if token is None:
            return parts


@pytest.mark.parametrize("size", [7, 60, 1000])
def test_a_list_that_is_gone_on_with_has_every_record_once(many, size):
    parts = read_in_parts(many, "--limit", size)
    keys = [key for part in parts for key in part]
    assert len(keys) == len(set(keys)) == 60
    assert all(len(part) <= size for part in parts)


def test_a_prefix_is_listed_over_many_pages_and_from_where_it_was(many):
    parts = read_in_parts(many, "--limit", 15, "--prefix", "m:")
    keys = [key for part in parts for key in part]
    assert sorted(keys) == sorted(f"m:{number}" for number in range(40))
    assert len(parts) >= 3


def test_a_list_cut_short_says_how_to_go_on_in_words_that_can_be_pasted(many):
    result = many.run("ls", "--limit", 5)
    assert len(result.stdout.splitlines()) == 6
    (token,) = re.findall(r"go on with the same options and --after=(\S+)\n", result.stderr)
    assert re.fullmatch(r"[\w%:/@,+=.~-]+", token)
    assert len(many.run("ls", f"--after={token}").stdout.splitlines()) == 56


def test_a_list_to_the_end_says_nothing_of_going_on(many):
    assert many.run("ls").stderr == ""
    assert rows(many.run("ls", "--json"))[1] is None


def test_a_token_that_is_none_is_refused(many):
    result = many.run("ls", "--after", "yesterday")
    assert result.returncode == 1
    assert "is not the place where an earlier page of this ledger ended" in result.stderr


def test_counts_of_parts_add_up(many):
    token, totals = None, []
    while token is not None or not totals:
        after = [] if token is None else [f"--after={token}"]
        counts = json.loads(many.run("stats", "--json", "--limit", 25, *after).stdout)
        totals.append(counts["total"])
        token = counts.get("next")
    assert sum(totals) == 60
    assert max(totals) <= 25
    part = many.run("stats", "--limit", 25)
    assert "these are the counts of a part: go on with" in part.stderr


def interrupted(cli, proxy, *arguments):
    """Press ctrl-C while a command waits for its second page."""
    waiting = []

    def rule(seen):
        if seen.action == "Scan" and "ExclusiveStartKey" in seen.body:
            waiting.append(seen)
            return Fault(delay=2.0)

    proxy.rule = rule
    process = cli.start(*arguments)
    until(lambda: waiting)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    proxy.clear()
    assert process.returncode == 130
    assert b"Traceback" not in err
    return out, err.decode()


@pytest.fixture
def paged(many, proxy):
    """The same ledger behind a server whose pages are small."""
    many.env["PYTHONPATH"] = f"{many.folder}:{many.env['PYTHONPATH']}"
    (many.folder / "sitecustomize.py").write_text(
        "import onceward.stores.ledger_reader\nonceward.stores.ledger_reader.PAGE = 20\n"
    )
    return many


def test_an_interrupted_count_tells_what_was_counted_and_how_to_go_on(paged, proxy):
    out, err = interrupted(paged, proxy, "stats", "--json")
    counts = json.loads(out)
    assert counts["total"] == 20
    rest = json.loads(paged.run("stats", "--json", f"--after={counts['next']}").stdout)
    assert rest["total"] == 40
    assert f"stopped; these are the counts of a part; go on with the same options and --after={counts['next']}" in err


@pytest.mark.nightly
def test_an_interrupted_list_says_how_to_go_on(paged, proxy):
    out, err = interrupted(paged, proxy, "ls", "--json")
    lines = out.splitlines()
    token = json.loads(lines.pop())["next"]
    seen = {json.loads(line)["key"] for line in lines}
    assert len(seen) == 20
    assert f"--after={token}" in err
    keys, _ = rows(paged.run("ls", "--json", f"--after={token}"))
    assert len(keys) == 40
    assert seen.isdisjoint(keys)


def test_a_purge_deletes_no_more_than_it_is_told(cli, url, proxy):
    cli.env["ONCEWARD_STORE"] = url
    once = Once(url)
    for number in range(10):
        once.acquire(number, lease=3, retention=3).complete()
    once.acquire("kept").complete()
    once.close()
    proxy.date = lambda: time.time() + 60
    first = cli.run("purge", "--limit", 4)
    assert first.stdout == b"4 expired record(s) deleted\n"
    assert "there may be more: run it again" in first.stderr
    assert json.loads(cli.run("purge", "--limit", 4, "--json").stdout) == {"purged": 4}
    assert json.loads(cli.run("purge", "--limit", 4, "--json").stdout) == {"purged": 2}
    assert rows(cli.run("ls", "--json"))[0] == ["claim:kept"]


def test_an_interrupted_purge_says_that_more_may_be_gone(cli, url, proxy):
    once = Once(url)
    once.acquire("k", lease=3, retention=3).complete()
    once.close()
    waiting = []

    def rule(seen):
        if seen.action == "DeleteItem":
            waiting.append(seen)
            return Fault(delay=2.0)

    proxy.rule, proxy.date = rule, lambda: time.time() + 60
    process = cli.start("purge", "--store", url, "--json")
    until(lambda: waiting)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out), err) == (130, {"purged": 0}, b"onceward: stopped\n")


# --- the same from Python, on every kind of ledger ------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "dynamodb"])
def once(request, tmp_path):
    kinds = {"memory": lambda: "memory:", "sqlite": lambda: f"sqlite:///{tmp_path}/ledger.db"}
    made = Once(kinds[request.param]() if request.param in kinds else request.getfixturevalue("url"), name="n")
    yield made
    made.close()


@pytest.mark.parametrize("limit", [1, 10, 30, 100])
@pytest.mark.parametrize("status", [None, "PARKED"])
def test_a_ledger_is_read_in_parts_of_any_size(once, limit, status, monkeypatch):
    monkeypatch.setattr("onceward.stores.ledger_reader.PAGE", 8)
    for number in range(30):
        claim = once.acquire(number)
        claim.park("why") if number % 10 == 0 else claim.complete()
    keys, after = [], None
    while True:
        pages = list(once.ledger.pages("n:", status, after=after, limit=limit))
        part = [record.key for page in pages for record in page.records]
        assert len(part) <= limit
        keys += part
        after = pages[-1].next
        if after is None:
            break
        assert len(part) == limit
    assert sorted(keys) == sorted(f"n:{number}" for number in range(30) if status is None or number % 10 == 0)


def test_a_few_records_among_many_are_found_in_long_pages(url, proxy, monkeypatch):
    once = Once(url, name="n")
    for number in range(300):
        once.acquire(number).complete()
    once.acquire("wanted").park("why")
    proxy.clear()
    found = [r.key for page in once.ledger.pages("", "PARKED", limit=1) for r in page.records]
    once.close()
    assert found == ["n:wanted"]
    assert len(proxy.actions) < 20


@pytest.mark.parametrize("kind", ["memory", "sqlite", "dynamodb"])
def test_a_purge_stops_at_its_limit_and_goes_on_later(kind, tmp_path, request):
    clock = ManualClock()
    if kind == "dynamodb":
        table, proxy = request.getfixturevalue("table"), request.getfixturevalue("proxy")
        proxy.date = clock
        store = open_table(table, endpoint=proxy.url, clock=clock)
    else:
        store = MemoryStore(clock) if kind == "memory" else SqliteStore(tmp_path / "ledger.db", clock=clock)
    once = Once(store, clock=clock)
    for number in range(9):
        once.acquire(number, lease=3, retention=3).complete()
    clock.advance(10)
    once.store._commits = 1  # between two purges that SQLite's writes make by themselves
    assert [once.ledger.purge(limit=4) for _ in range(3)] == [4, 4, 1]
    assert once.ledger.purge(limit=0) == 0
    once.close()


# --- when something is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["ls"], ["stats"], ["purge"], ["show", "k"], ["clear", "k"], ["park", "k"]])
def test_a_table_that_there_is_not_is_told_with_the_command_that_makes_it(cli, fresh, command):
    result = cli.run(*command, "--store", fresh)
    assert result.returncode == 1
    assert "onceward init" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_endpoint_where_nobody_is_is_named(cli):
    port = free_port()
    for command in ("ls", "init"):
        result = cli.run(command, "--store", f"dynamodb://orders?endpoint=http://127.0.0.1:{port}")
        assert result.returncode == 1
        assert f"127.0.0.1:{port}" in result.stderr
        assert "check the endpoint and the region" in result.stderr
        assert result.stderr.count("\n") == 1


def test_an_endpoint_that_is_no_url_is_a_usage_error(cli):
    result = cli.run("ls", "--store", "dynamodb://orders?endpoint=localhost")
    assert result.returncode == 2
    assert "http://host:port" in result.stderr


@pytest.mark.parametrize(
    ("command", "action"),
    [
        (["ls"], "Scan"),
        (["show", "n:a"], "GetItem"),
        (["clear", "n:a", "--yes"], "DeleteItem"),
        (["park", "n:r"], "UpdateItem"),
        (["init"], "DescribeTable"),
    ],
)
def test_a_right_that_is_missing_is_named(held, proxy, command, action):
    proxy.rule = lambda seen: Refuse("AccessDeniedException") if seen.action == action else None
    result = held.run(*command)
    assert result.returncode == 1
    assert f"allow dynamodb:{action} on the table in the IAM policy" in result.stderr
    assert result.stderr.count("\n") == 1
