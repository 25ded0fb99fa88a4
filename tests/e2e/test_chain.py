"""``onceward show --chain``: records of three services in two ledgers, shown as one tree."""

import json

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.core.drivers import drive
from onceward.core.origin import provenance_in
from onceward.core.record import COMPLETED
from onceward.testing.bench import claim_of


@pytest.fixture
def cli(tmp_path, aws):
    return Cli(tmp_path)


@pytest.fixture
def shop(tmp_path, url):
    """An order, whose message has paid, and that one's message has shipped. Returns the URLs of both ledgers, and the keys."""
    ours, keys = f"sqlite:///{tmp_path}/orders.db", ['place:"a\\u001bb"', "pay:1", "ship:2"]
    orders, payments = Once(ours), Once(url)
    for once, key, parent in zip((orders, payments, orders), keys, (None, *keys), strict=False):
        headers = {"onceward-parent": parent, "onceward-root": keys[0]} if parent else {}
        write = claim_of(key, status=COMPLETED, lease=0.0, keep=None, origin=provenance_in(headers.get).origin)
        drive(once.store.insert(write), once.store)
    orders.close()
    payments.close()
    return ours, url, keys


def test_a_chain_over_two_ledgers_is_one_tree(cli, shop):
    ours, theirs, keys = shop
    done = cli.run("show", "--chain", keys[1], "--store", ours, "--store", theirs, "--scan")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.decode().splitlines()
    assert head.split() == ["KEY", "STATUS", "CLAIMED", "CHANGED", "WORKER", "LEDGER"]
    assert [row.count("COMPLETED") for row in rows] == [1, 1, 1]
    for row, key, lead, ledger in zip(rows, keys, ("'", "└─ ", "   └─ "), (ours, theirs, ours), strict=True):
        assert row.startswith(f"{lead}{key}")
        assert ledger.partition("?")[0].rpartition("/")[2] in row
    assert [" < " in row for row in rows] == [False, True, False]
    assert "\x1b" not in done.stdout.decode()
    told = cli.run("show", "--chain", keys[2], "--store", ours, "--store", theirs, "--scan", "--json")
    nodes = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(one["key"], one["depth"], one["parent"]) for one in nodes] == [
        (keys[0], 0, None),
        (keys[1], 1, keys[0]),
        (keys[2], 2, keys[1]),
    ]


def test_a_table_is_not_read_unless_that_is_asked_for_and_what_is_missing_leaves_a_gap(cli, shop):
    ours, theirs, keys = shop
    done = cli.run("show", "--chain", keys[0], "--store", ours, "--store", theirs)
    assert done.returncode == 0
    assert "has no index by origin: what messages led to there is not shown. --scan reads it" in done.stderr
    gap = cli.run("show", "--chain", keys[2], "--store", ours).stdout.decode().splitlines()[1:]
    assert "no record: expired, cleared, or in a ledger that is not named" in gap[1]
    for rows in (done.stdout.decode().splitlines()[1:], gap):  # the parcel's row names the payment
        assert [key in row for key, row in zip(keys, rows, strict=True)] == [True, True, True]
