"""``onceward reconcile`` as a command, on every store."""

import json
import sqlite3

import pytest

from command_line import Cli
from onceward import Once


@pytest.fixture
def cli(tmp_path, ledger):
    return Cli(tmp_path)


@pytest.fixture
def url(ledger):
    return ledger.url


@pytest.fixture
def once(url):
    once = Once(url)
    for order in ("ok", "lost", "twice", 42):
        once.acquire(order, name="shop").complete("done")
    once.acquire("broken", name="shop").release("no")
    yield once
    once.close()


EFFECTS = ["ok", "twice", "twice", "42", "broken", "nobody"]
TOLD = [
    "double: shop:twice (COMPLETED, made 2 times)",
    "effect without a record: shop:broken (RELEASED)",
    "effect without a record: shop:nobody (no record)",
    "record without an effect: shop:lost",
]


def test_a_csv_file_and_a_ledger_are_compared(cli, once, url):
    cli.write("effects.csv", "id,order", *(f"1,{effect}" for effect in EFFECTS))
    done = cli.run(
        "reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", "effects.csv", "--column", "order"
    )
    assert sorted(done.stdout.decode().splitlines()) == TOLD
    assert done.returncode == 3
    assert done.stderr == "onceward: double: 1, effect without a record: 2, record without an effect: 1\n"


def test_a_function_and_a_ledger_are_compared(cli, once, url):
    cli.write("bank.py", "def payments():", f"    yield from {EFFECTS!r}")
    done = cli.run(
        "reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", "bank:payments", "--json"
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((one["what"], one["key"]) for one in told) == [
        ("double", "shop:twice"),
        ("effect without a record", "shop:broken"),
        ("effect without a record", "shop:nobody"),
        ("record without an effect", "shop:lost"),
    ]


def made(connection):
    """Make a table of payments in a database, and close the connection."""
    connection.execute("CREATE TABLE payments (id text)")
    for effect in EFFECTS:
        connection.execute(f"INSERT INTO payments VALUES ('{effect}')")
    connection.commit()
    connection.close()


def test_a_query_of_another_database_and_a_ledger_are_compared(cli, once, url, tmp_path):
    made(sqlite3.connect(tmp_path / "shop.db"))
    query = ("--against", "SELECT id FROM payments", "--database", f"sqlite:///{tmp_path}/shop.db")
    done = cli.run("reconcile", "--store", url, "--name", "shop", "--settle", "0", *query)
    assert sorted(done.stdout.decode().splitlines()) == TOLD


def test_a_query_of_the_ledgers_own_postgresql_is_compared(tmp_path, schema):
    with_keys = Once(schema)
    for order in {*EFFECTS, "lost"} - {"nobody"}:
        with_keys.acquire(order, name="shop").complete(None)
    with_keys.close()
    values = ", ".join(f"('{effect}')" for effect in EFFECTS)
    query = ("--against", f"WITH payments (id) AS (VALUES {values}) SELECT id FROM payments")
    done = Cli(tmp_path).run("reconcile", "--store", schema, "--name", "shop", "--settle", "0", *query)
    assert sorted(done.stdout.decode().splitlines()) == [
        "double: shop:twice (COMPLETED, made 2 times)",
        "effect without a record: shop:nobody (no record)",
        "record without an effect: shop:lost",
    ]


def test_agreement_is_status_0(cli, once, url):
    cli.write("effects.csv", "key", "ok", "twice", "42", "lost")
    done = cli.run("reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", "effects.csv")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", "onceward: ledger and downstream agree\n")


@pytest.mark.parametrize("against", ["missing.csv", "no_module:f", "nonsense", "SELECT id FROM nowhere_at_all"])
def test_effects_that_cannot_be_read_are_status_2(cli, once, url, against):
    done = cli.run("reconcile", "--store", url, "--against", against)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith("onceward: --against ")


@pytest.mark.parametrize(
    ("against", "says"), [("keys.csv", "is empty or missing"), ("bank:payments", "OSError: the bank")]
)
def test_effects_without_a_key_or_an_end_are_status_2(cli, once, url, against, says):
    cli.write("keys.csv", "key,amount", "ok,1", ",2")
    cli.write("bank.py", "def payments():", "    yield 'ok'", "    raise OSError('the bank does not answer')")
    done = cli.run("reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", against)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(f"onceward: --against {against}: ")
    assert says in done.stderr
