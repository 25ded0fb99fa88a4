"""``onceward show KEY --chain``: each key of a chain shows all of it, over two ledgers."""

import json
from contextlib import closing

import pytest
from typer.testing import CliRunner

from onceward import Once
from onceward.cli import records as chain
from onceward.cli.app import command_line
from onceward.core.drivers import drive
from onceward.core.origin import provenance_in
from onceward.testing.bench import claim_of
from tables import each

CHAIN = [("order", None), ("pay", "order"), ("ship", "order"), ("book", "pay"), ("mail", "gone")]
WHOLE = ["order", "  gone", "    mail", "  pay", "    book", "  ship"]


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put keys, each with its parent, into two ledgers in turn."""
    monkeypatch.chdir(tmp_path)

    def put(keys, root):
        for number, (key, parent) in enumerate(keys):
            headers = {"onceward-parent": parent, "onceward-root": root}
            with closing(Once(f"sqlite:///{'ab'[number % 2]}.db")) as once:
                drive(once.store.insert(claim_of(key, "a", origin=provenance_in(headers.get).origin)), once.store)

    put(CHAIN, "order")
    return put


def show(*arguments):
    stores = [f"--store=sqlite:///{name}.db" for name in "ab"]
    return CliRunner().invoke(command_line(["show"]), ["show", "--chain", *stores, *arguments])


def names(result):
    head, *rows = result.stdout.splitlines()
    return [row[: head.index("STATUS")].rstrip(" <") for row in rows]


@each("key", [key for key, _ in CHAIN])
def test_each_key_shows_the_whole_chain(put, key):
    result = show(key)
    assert names(result) == WHOLE
    assert [" < " in row for row in result.output.splitlines()[1:]] == [name.endswith(key) for name in WHOLE]
    assert "no record: expired, cleared, or in a ledger that is not named" in result.output.splitlines()[2]
    nodes = [json.loads(line) for line in show(key, "--json").output.splitlines()]
    assert [(one["depth"], one.get("parent")) for one in nodes if one["key"] in {"gone", "book"}] == [
        (1, None),
        (2, "pay"),
    ]


def test_forged_headers_that_make_a_circle_end(put):
    put([("a", "c"), ("b", "a"), ("c", "b"), ("self", "self")], "a")
    assert names(show("a")) == ["self", "a", "  b", "    c"]


def test_a_key_that_is_nowhere_and_a_long_chain_are_told(put, monkeypatch):
    assert show("nothing").exit_code == 1
    monkeypatch.setattr(chain, "LONGEST", 3)
    assert "a chain of 3 keys or more is not shown as a whole" in show("order").output
