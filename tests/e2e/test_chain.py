"""``onceward show --chain``: three services with two ledgers, whose messages go through the outbox, shown as one tree."""

import json

import pytest

import onceward
from commands.command_line import Cli
from onceward import Once
from onceward.aws import on_sqs
from onceward.outbox import register, sender
from queues import lambda_events
from queues.boxes import RecordedTarget


@pytest.fixture
def cli(tmp_path, aws):
    return Cli(tmp_path)


def event(message):
    record = lambda_events.sqs_record("m", json.loads(message.body))
    attributes = {**message.headers, "onceward-key": message.key}
    record["messageAttributes"] = {
        name: {"stringValue": value, "dataType": "String"} for name, value in attributes.items()
    }
    return {"Records": [record]}


@pytest.fixture
def shop(tmp_path, url):
    """Place an order: its message pays, and that one's message ships. Returns the URLs of both ledgers, and the keys."""
    ours = f"sqlite:///{tmp_path}/orders.db"
    target = RecordedTarget()
    register("shop", lambda _: target)
    orders, payments = Once(ours), Once(url)

    @orders(key="n", name="place")
    def place(n: str) -> str:
        onceward.current().send("shop:pay", {"order": n})
        return "placed"

    @on_sqs(payments, name="pay")
    def pay(payment: dict) -> None:
        onceward.current().send("shop:ship", payment)

    @on_sqs(orders, name="ship")
    def ship(parcel: dict) -> None:
        pass

    place("a\x1bb")
    assert sender.SENDER.drain(10) == 0
    pay(event(target.sent[0]), lambda_events.Context())
    assert sender.SENDER.drain(10) == 0
    ship(event(target.sent[1]), lambda_events.Context())
    keys = ['place:"a\\u001bb"', f"pay:{target.sent[0].key}", f"ship:{target.sent[1].key}"]
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
