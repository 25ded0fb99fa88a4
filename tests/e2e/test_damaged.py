"""Records that cannot be read, because somebody else wrote to them: no handler runs, and people are told which they are."""

import base64
import json
import zlib

import pytest

from commands.command_line import Cli
from onceward import Once, StoreError
from onceward.stores.contract import Damaged, DamagedRecord

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


def never():
    raise AssertionError("the handler ran")


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


def test_the_commands_go_on_and_name_it(tmp_path, once, url):
    cli = Cli(tmp_path)
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
        once.using(name="n").run("k", never)
    assert "4111" not in str(caught.value)
