"""``onceward complete``: what it runs, what it says, and how it stops. And what the other commands say of a kept input."""

import json
import signal
import subprocess
import sys
import time

import pytest

from commands.command_line import Cli
from tables import each
from waiting import until

SHOP = """
import os, signal, sys, time
from pathlib import Path

from onceward import Claim, Once

once = Once("sqlite:///onceward.db", lease=0.5)
options = {"key": "order.id", "keep_input": True}

def note(*words):
    with open("log", "a") as file:
        print(*words, file=file)

@once(**options)
def place(order: dict, claim: Claim):
    note("place", order["id"], claim.attempt)
    print("a handler may print")
    if order.get("slow"):
        time.sleep(order["slow"] if claim.attempt > 1 else 60)
    if order.get("fail") and claim.attempt > 1:
        raise ValueError("4242")
    if claim.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("placed", order["id"])
    return order["id"]

@once(**options)
async def ship(order: dict, claim: Claim):
    note("ship", order["id"], claim.attempt)
    if claim.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@once(key="n")
def bare(n): ...

def plain(n): ...

if __name__ == "__main__":
    import asyncio, json
    from shop import place, ship
    function, order = {"place": place, "ship": ship}[sys.argv[1]], json.loads(sys.argv[2])
    made = function(order)
    if sys.argv[1] == "ship":
        asyncio.run(made)
"""


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    return made


def crash(cli, function, **order):
    """Kill a process inside a handler, and let its lease end."""
    command = [sys.executable, "shop.py", function, json.dumps(order)]
    process = subprocess.Popen(command, cwd=cli.folder, env=cli.env, stdout=subprocess.DEVNULL)
    until(lambda: f"{function} {order['id']} 1" in log(cli))
    if "slow" in order:
        process.kill()
    assert process.wait(60) == -signal.SIGKILL
    time.sleep(0.6)


def log(cli):
    path = cli.folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def complete(cli, *options, call="shop:place"):
    return cli.run("complete", "--call", call, *options)


def test_a_look_runs_what_has_lapsed_and_ends(cli):
    crash(cli, "place", id=1)
    crash(cli, "ship", id=2)
    result = complete(cli, "--call", "shop:ship", "--once", "--json")
    assert result.returncode == 0, result.stderr
    told = {"completed": 2, "failed": 0, "parked": 0, "taken": 0, "left": 0}
    assert json.loads(result.stdout.splitlines()[-1]) == told
    assert log(cli) == ["place 1 1", "ship 2 1", "place 1 2", "placed 1", "ship 2 2"]
    again = complete(cli, "--once")
    assert (again.returncode, again.stdout) == (0, b"")


def test_a_failure_is_counted_and_its_text_is_not_shown(cli):
    crash(cli, "place", id=1, fail=True)
    result = complete(cli, "--once")
    assert result.returncode == 1
    assert b"1 failed" in result.stdout
    assert "shop.place:1: run again, and it raised ValueError" in result.stderr
    assert "4242" not in result.stderr
    assert complete(cli, "--once").returncode == 0
    assert complete(cli, "--once", "--released", "0s").returncode == 1


def test_the_first_signal_lets_the_handler_end_and_begins_no_other(cli):
    for n in (1, 2):
        crash(cli, "place", id=n, slow=1.0)
    process = cli.start("complete", "--call", "shop:place")
    until(lambda: "place 1 2" in log(cli))
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert b"1 completed" in out
    assert ["placed 1" in log(cli), "place 2 2" in log(cli)] == [True, False]


@each(
    ("call", "status", "said"),
    [
        ("shop:plain", 2, "give a function that you decorate with @once(key=..., keep_input=True)"),
        ("shop:bare", 2, "its calls keep no arguments"),
        ("shop:nothing", 2, "shop has no function nothing"),
        ("other:f", 2, "these functions are on several ledgers"),
        ("shop:ship", 4, "onceward: "),
    ],
)
def test_what_cannot_be_completed_is_refused(cli, call, status, said):
    f = "from onceward import Once\n@Once('sqlite:///other.db')(key='n', keep_input=True)\ndef f(n): ...\n"
    (cli.folder / "other.py").write_text(f)
    (cli.folder / "onceward.db").mkdir(exist_ok=True)
    result = complete(cli, "--call", "shop:place" if call == "other:f" else call, "--once", call=call)
    assert (result.returncode, said in result.stderr) == (status, True), result.stderr


def test_show_prints_the_input_and_what_runs_it(cli):
    crash(cli, "place", id=1)
    shown = cli.run("show", "shop.place:1").stdout.decode()
    assert 'input          {"function":"shop.place","arguments":{"order":{"id":1}}}' in shown
    assert "`onceward complete --call MODULE:FUNCTION` runs it with its kept input; or deliver it again" in shown
    cli.run("park", "shop.place:1")
    told = cli.run("unpark", "shop.place:1").stdout.decode()
    assert "its next delivery runs; `onceward complete --released 0s` runs it without one" in told


def test_a_sealed_input_is_not_shown(cli):
    def interrupted(n, card):
        raise KeyboardInterrupt

    once = cli.once(seal=(lambda text: text[::-1], bytes))
    with pytest.raises(KeyboardInterrupt):
        once(key="n", name="s", keep_input=True)(interrupted)(7, "4242")
    shown = cli.run("show", "s:7").stdout.decode()
    assert "input          (sealed)" in shown
    assert "2424" not in shown
