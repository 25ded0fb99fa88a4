"""``onceward reconcile`` as a command, on every store."""

import json

import pytest

from commands.command_line import Cli
from onceward import Once


@pytest.fixture
def cli(tmp_path, ledger):
    return Cli(tmp_path)


@pytest.fixture
def url(ledger):
    """The URL of a ledger of an application."""
    once = Once(ledger.url)
    for order in ("ok", "lost", "twice", 42):
        once.acquire(order, name="shop").complete("done")
    once.acquire("broken", name="shop").release("no")
    once.close()
    return ledger.url


EFFECTS = ["ok", "twice", "twice", "42", "broken", "nobody"]
TOLD = [
    "double: shop:twice (COMPLETED, made 2 times)",
    "effect without a record: shop:broken (RELEASED)",
    "effect without a record: shop:nobody (no record)",
    "record without an effect: shop:lost",
]


def test_a_csv_file_and_a_ledger_are_compared(cli, url):
    cli.write("effects.csv", "id,key", *(f"1,{effect}" for effect in EFFECTS))
    done = cli.run("reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", "effects.csv")
    assert sorted(done.stdout.decode().splitlines()) == TOLD
    assert done.returncode == 3
    assert done.stderr == "onceward: double: 1, effect without a record: 2, record without an effect: 1\n"
    command = ("reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", "-", "--json")
    told = cli.run(*command, input="\n".join(["key", *EFFECTS]).encode()).stdout.splitlines()
    assert sorted(json.loads(line)["what"] for line in told) == [line.partition(":")[0] for line in TOLD]


def test_the_status_is_0_if_all_agree_and_2_if_the_effects_cannot_be_read(cli, url):
    def reconciled(file):
        done = cli.run("reconcile", "--store", url, "--name", "shop", "--settle", "0", "--against", file)
        return done.returncode, done.stdout, done.stderr

    cli.write("effects.csv", "key", "ok", "twice", "42", "lost")
    cli.write("keys.csv", "key,amount", "ok,1", ",2")
    assert reconciled("effects.csv") == (0, b"", "onceward: ledger and downstream agree\n")
    for file, said in (("missing.csv", "No such file"), ("keys.csv", "is empty or missing")):
        status, out, err = reconciled(file)
        assert (status, out) == (2, b"")
        assert err.startswith(f"onceward: --against {file}: ")
        assert said in err
