"""The runbook, tried on a system that is broken on purpose: each alarm rings, and what the page says to do ends it."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from commands.command_line import Cli
from onceward import Once
from onceward.cli.app import COMMANDS
from places import ROOT
from waiting import until

PAGE = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")
# A shop in a process of its own: ``shop.py HOW KEY`` handles one order.
SHOP = """
import sys, time
from onceward import Once
once = Once("sqlite:///onceward.db", max_attempts=2, lease=1)
how, key = sys.argv[1:3]

@once.using(name="pay")(key="order")
def pay(order):
    if how == "fail":
        raise ConnectionError("the bank does not answer")
    if how == "hang":
        print("hanging", flush=True)
        time.sleep(3600)
    return "paid"

try:
    print(pay(key), flush=True)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
once.close()
"""


class Shop(Cli):
    """A ledger, and workers that are processes."""

    def order(self, how, key):
        command = [sys.executable, "shop.py", how, key]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True)

    def ordered(self, how, key="order-1"):
        told, _ = self.order(how, key).communicate(timeout=60)
        return told.strip()

    @contextlib.contextmanager
    def hanging(self):
        """Give a worker that hangs in the handler of order-1; it dies at the end, and its lease lapses."""
        worker = self.order("hang", "order-1")
        assert worker.stdout.readline() == "hanging\n"
        yield worker
        worker.kill()
        worker.communicate()
        until(lambda: self.alarms() == ["lapsed"])

    def alarms(self):
        """Return which states that need somebody have records."""
        counts = json.loads(self.says("stats", "--json"))
        return [state for state in ("PARKED", "lapsed") if counts[state]]

    def history(self):
        return json.loads(self.says("show", "pay:order-1", "--json"))["history"]

    def says(self, *command):
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    assert shop.ordered("work", "order-0") == "paid"
    assert shop.alarms() == []
    return shop


def test_parked_is_told_and_an_unpark_ends_it(shop):
    assert "ConnectionError" in shop.ordered("fail")
    assert shop.alarms() == []
    assert "ConnectionError" in shop.ordered("fail")
    assert shop.alarms() == ["PARKED"]
    told = shop.says("show", "pay:order-1")
    assert re.search(r"1 +\d+ s ago +\S+ s +RELEASED +\d+ +\S+ +ConnectionError: the bank does not answer", told)
    assert [one["outcome"] for one in shop.history()] == ["RELEASED", "PARKED"]
    assert "pay:order-1" in shop.says("ls", "--status", "PARKED", "--newer-than", "1h")
    assert "Parked" in shop.ordered("work")
    shop.says("unpark", "pay:order-1")
    assert shop.ordered("work") == "paid"
    assert shop.alarms() == []


def test_a_key_whose_worker_died_is_told_and_settled_when_its_effect_is_made(shop):
    with shop.hanging() as worker:
        stuck = r"IN_PROGRESS +1 +\d+ s ago .* pay:order-1"
        until(lambda: re.search(stuck, shop.says("ls", "--status", "IN_PROGRESS")))
        assert f"/{worker.pid}" in shop.says("show", "pay:order-1")
    assert "its worker has vanished" in shop.says("show", "pay:order-1")
    shop.says("park", "pay:order-1")
    (told,) = [line for line in shop.says("show", "pay:order-1").splitlines() if line.startswith("next ")]
    assert "ask the downstream whether its effect was made" in told
    assert [shlex.split(one)[1] for one in told.split("`")[1::2]] == ["unpark", "settle"]
    shop.says("settle", "pay:order-1", "--result", '"paid"', "--yes")
    assert (shop.ordered("work"), shop.alarms()) == ("paid", [])
    assert [one["worker"] for one in shop.history()[1:]] == ["by hand"]


def test_every_command_of_the_page_has_its_options(shop):
    for line in re.findall(r"(?:`|\$ )onceward ([^`\n]+)", PAGE):
        name, *options = line.split()
        assert name in COMMANDS, line
        told = shop.run(name, "--help").stdout.decode()
        for option in options:
            assert not option.startswith("--") or option in told, line


def test_doctor_watches_and_tells_only_what_is_new(shop):
    process = shop.start("doctor", "--store", "sqlite:///onceward.db", "--watch", "1s")
    first = process.stdout.readline()
    time.sleep(3)  # for some looks
    process.send_signal(signal.SIGINT)
    told, trouble = process.communicate(timeout=60)
    assert (first.strip() != b"", first in told, trouble) == (True, False, b"")


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
    for file, said in (("missing.csv", "No such file"), ("keys.csv", "is an empty str")):
        status, out, err = reconciled(file)
        assert (status, out) == (2, b"")
        assert err.startswith(f"onceward: --against {file}: ")
        assert said in err
