"""Records that cannot be read, because somebody else wrote to them: no handler runs, and people are told which they are."""

import base64
import contextlib
import json
import sqlite3
import zlib
from collections.abc import Callable
from typing import NamedTuple

import pytest

from commands.command_line import Cli
from onceward import Once, StoreError
from onceward.core.drivers import drive
from onceward.stores.contract import Damaged, DamagedRecord

# --- how each kind of ledger is damaged ---------------------------------------------------------------------------

SQLITE = {
    "a fence of text": "fence = 'x'",
    "a result of bytes": "result = x'ff00'",
    "an error that is not UTF-8": "error = CAST(x'ff00' AS TEXT)",
    "a lease of text": "lease_until = 'soon'",
}
DYNAMODB = {
    "a fence of text": {"fence": {"S": "x"}},
    "a fence that is no whole number": {"fence": {"N": "1.5"}},
    "a result that does not unfold": {"result": {"B": "AAAA"}},
    "a result that points nowhere": {"result": {"M": {"bucket": {"N": "1"}}}},
    "an owner of bytes": {"owner": {"B": "AAAA"}},
}


class Ledger(NamedTuple):
    """A ledger whose keys can be damaged: ``change`` does it behind its back, and ``changed`` is another change."""

    url: str
    change: Callable
    changed: object


def sqlite_ledger(path, what):
    def change(key, what=what):
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE onceward SET {what} WHERE key = ?", (key,))

    return Ledger(f"sqlite:///{path}", change, "owner = 'changed'")


@pytest.fixture(params=[*(("sqlite", what) for what in SQLITE), *(("dynamodb", what) for what in DYNAMODB)], ids=str)
def ledger(request, tmp_path):
    kind, what = request.param
    if kind == "sqlite":
        return sqlite_ledger(tmp_path / "ledger.db", SQLITE[what])
    url, table = request.getfixturevalue("url"), request.getfixturevalue("table")
    server = request.getfixturevalue("dynoxide")

    def change(key, what=DYNAMODB[what]):
        (item,) = [item for item in server.items(table) if item["key"]["S"] == key]
        server.ask("PutItem", TableName=table, Item={**item, **what})

    return Ledger(url, change, {"error": {"S": "changed"}})


@pytest.fixture
def once(ledger):
    made = Once(ledger.url, retention=60, lease=3)
    for number in range(5):
        made.using(name="n").run(f"k{number}", lambda number=number: number)
    ledger.change("n:k2")
    yield made
    made.close()


def never():
    raise AssertionError("the handler ran")


# --- what becomes of them -----------------------------------------------------------------------------------------


def test_its_handler_does_not_run_and_it_harms_no_other_until_it_is_cleared(once):
    mine = once.using(name="n")
    with pytest.raises(StoreError, match=r"n:k2.*clear the key") as caught:
        mine.run("k2", never)
    assert not caught.value.transient
    assert mine.run("k3", never) == 3
    outcomes = once.batch(lambda order: order, key="order", name="n").run([f"k{number}" for number in range(6)])
    assert [one.status for one in outcomes] == ["replayed"] * 2 + ["failed"] + ["replayed"] * 2 + ["done"]
    assert isinstance(outcomes[2].error, DamagedRecord)
    assert isinstance(once.ledger.clear("n:k2"), Damaged)
    assert mine.run("k2", lambda: "again") == "again"
    assert sorted(record.key for record, _ in once.ledger.records()) == [f"n:k{number}" for number in range(6)]


def test_lists_and_counts_leave_it_out_and_name_it(once):
    assert sorted(record.key for record, _ in once.ledger.records()) == ["n:k0", "n:k1", "n:k3", "n:k4"]
    (one,) = [one for page in once.ledger.pages() for one in page.damaged]
    assert one.key == "n:k2"
    stats = once.ledger.stats()
    assert (stats["total"], stats["COMPLETED"], stats["damaged"]) == (4, 4, 1)


def test_it_is_deleted_as_it_was_seen_and_not_when_it_has_changed_since(once, ledger):
    with pytest.raises(DamagedRecord) as caught:
        drive(once.store.load("n:k2"), once.store)
    ledger.change("n:k2", ledger.changed)
    with pytest.raises(DamagedRecord):
        drive(once.store.delete(caught.value.damaged), once.store)
    assert "damaged" in once.ledger.stats()


# --- for people -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ledger", [("sqlite", "an error that is not UTF-8"), ("dynamodb", "a fence of text")], ids=str, indirect=True
)
def test_the_commands_go_on_and_name_it(tmp_path, aws, ledger, once):
    cli = Cli(tmp_path)
    cli.env["ONCEWARD_STORE"] = ledger.url
    listed = cli.run("ls")
    assert [listed.returncode, b"n:k4" in listed.stdout, b"n:k2" in listed.stdout] == [0, True, False]
    assert "skipped n:k2, which cannot be read" in listed.stderr
    told = [json.loads(line) for line in cli.run("ls", "--json").stdout.splitlines()]
    assert [one["key"] for one in told if "damaged" in one] == ["n:k2"]
    counted = cli.run("stats", "--json")
    assert json.loads(counted.stdout)["damaged"] == 1
    assert "n:k2" in counted.stderr
    assert [cli.run("purge").returncode, cli.run("show", "n:k2").returncode] == [0, 1]
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
    assert (purged.gone, [one.key for one in purged.damaged]) == (2, ["n:k1"])
    assert [item["key"]["S"] for item in dynoxide.items(table)] == ["n:k1"]


def test_what_is_told_of_it_has_nothing_of_its_result(url, table, dynoxide):
    secret = base64.b64encode(zlib.compress(b"4111 1111 1111 1111 \xff" * 50)).decode()
    once = Once(url)
    once.using(name="n").run("k", int)
    (item,) = dynoxide.items(table)
    dynoxide.ask("PutItem", TableName=table, Item={**item, "result": {"B": secret}})
    with pytest.raises(StoreError) as caught:
        once.using(name="n").run("k", never)
    assert "4111" not in str(caught.value)
    dynoxide.ask("PutItem", TableName=table, Item={"key": {"S": "n:k"}})  # with nothing but its key
    with pytest.raises(StoreError):
        once.using(name="n").run("k", never)
    once.ledger.clear("n:k")
    assert dynoxide.items(table) == []
