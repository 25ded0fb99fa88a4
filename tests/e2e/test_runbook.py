"""The runbook, tried on a system that is broken on purpose: each alarm rings, and what the page says to do ends it."""

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from commands.command_line import Cli
from onceward import StoreError
from onceward.cli.app import COMMANDS
from onceward.cli.doctor import _watch
from onceward.stores.inspection import Finding
from places import ROOT
from servers.needs import free_port

PAGE = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")
# A shop in a process of its own: ``shop.py HOW KEY`` handles one order.
SHOP = """
import sys, time
from onceward import Once, current
once = Once("sqlite:///onceward.db", max_attempts=2, lease=1)
how, key = sys.argv[1:3]

@once.using(name="pay")(key="order")
def pay(order):
    if how == "fail":
        raise ConnectionError("the bank does not answer")
    if how == "hang":
        print("hanging", flush=True)
        time.sleep(3600)
    if how.startswith("http"):
        current().send(how, {"paid": order})
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
        return subprocess.Popen(
            [sys.executable, "shop.py", how, key], cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True
        )

    def ordered(self, how, key="order-1"):
        told, _ = self.order(how, key).communicate(timeout=60)
        return told.strip()

    def alarms(self):
        """Return which states that need somebody have records, as the gauges of metrics tell them, too."""
        counts = json.loads(self.says("stats", "--json"))
        return [state for state in ("PARKED", "lapsed", "unsent", "refused") if counts.get(state)]

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
    assert re.search(r"2 +\d+ s ago +\S+ s +PARKED ", told)
    history = json.loads(shop.says("show", "pay:order-1", "--json"))["history"]
    assert [one["outcome"] for one in history] == ["RELEASED", "PARKED"]
    assert "pay:order-1" in shop.says("ls", "--status", "PARKED", "--newer-than", "1h")
    assert "Parked" in shop.ordered("work")
    shop.says("unpark", "pay:order-1")
    assert shop.ordered("work") == "paid"
    assert shop.alarms() == []
    stats = json.loads(shop.says("stats", "--json"))
    assert (stats["PARKED"], stats["lapsed"]) == (0, 0)


def test_a_key_whose_worker_died_is_settled_when_its_effect_is_made(shop):
    worker = shop.order("hang", "order-1")
    assert worker.stdout.readline() == "hanging\n"
    worker.kill()
    worker.communicate()
    wait_for(lambda: json.loads(shop.says("stats", "--json"))["lapsed"] == 1)
    shop.says("park", "pay:order-1")
    told = shop.says("show", "pay:order-1")
    assert "ask the downstream whether its effect was made" in told
    assert "fix the cause" not in told
    shop.says("settle", "pay:order-1", "--result", '"paid"', "--yes")
    assert shop.ordered("work") == "paid"
    history = json.loads(shop.says("show", "pay:order-1", "--json"))["history"]
    assert [one["worker"] for one in history[1:]] == ["by hand"]


def test_lapsed_is_told_and_a_redelivery_ends_it(shop):
    worker = shop.order("hang", "order-1")
    assert worker.stdout.readline() == "hanging\n"
    worker.kill()
    worker.communicate()
    wait_for(lambda: shop.alarms() == ["lapsed"])
    assert "its worker has vanished" in shop.says("show", "pay:order-1")
    assert json.loads(shop.says("stats", "--json"))["lapsed"] == 1
    assert shop.ordered("work") == "paid"
    assert shop.alarms() == []
    first, second = json.loads(shop.says("show", "pay:order-1", "--json"))["history"]
    assert (first["outcome"], first["end"], second["outcome"]) == ("LAPSED", None, "COMPLETED")
    assert first["worker"].endswith(f"/{worker.pid}")


def test_stuck_is_told_and_the_end_of_the_process_ends_it(shop):
    worker = shop.order("hang", "order-1")
    assert worker.stdout.readline() == "hanging\n"
    wait_for(lambda: re.search(r"IN_PROGRESS +1 +\d+ s ago .* pay:order-1", shop.says("ls", "--status", "IN_PROGRESS")))
    assert f"/{worker.pid}" in shop.says("show", "pay:order-1")
    worker.kill()
    worker.communicate()
    wait_for(lambda: shop.alarms() == ["lapsed"])
    assert shop.ordered("work") == "paid"
    assert shop.alarms() == []


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def target():
    """Give a function that starts a target on a port, which answers with a status."""
    started = []

    def start(port, answer):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Hook)
        server.answer = answer
        started.append(server)
        threading.Thread(target=server.serve_forever).start()

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_overdue_is_told_and_a_relay_ends_it(shop, target):
    port = free_port()
    assert shop.ordered(f"http://127.0.0.1:{port}/hook") == "paid"
    wait_for(lambda: shop.alarms() == ["unsent"])
    target(port, 200)
    wait_for(lambda: shop.run("relay", "--once").returncode == 0 and shop.alarms() == [])
    assert "pay:order-1" not in shop.says("ls", "--status", "UNSENT")


def test_refused_is_told_and_a_drop_ends_it(shop, target):
    port = free_port()
    target(port, 400)
    assert shop.ordered(f"http://127.0.0.1:{port}/hook") == "paid"
    wait_for(lambda: shop.run("relay", "--once") and shop.alarms() == ["refused"])
    assert "pay:order-1" in shop.says("ls", "--status", "REFUSED")
    assert "400" in shop.says("show", "pay:order-1")
    shop.says("relay", "--drop", "pay:order-1")
    assert shop.alarms() == []


def test_every_command_of_the_page_has_its_options(shop):
    for line in re.findall(r"(?:`|\$ )onceward ([^`\n]+)", PAGE):
        name, *options = line.split()
        assert name in COMMANDS, line
        told = shop.run(name, "--help").stdout.decode()
        for option in options:
            assert not option.startswith("--") or option in told, line


def wait_for(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_doctor_looks_again_and_prints_what_is_found_once(shop):
    command = [sys.executable, "-m", "onceward", "doctor", "--store", "sqlite:///onceward.db", "--watch", "0.1s"]
    watcher = subprocess.Popen(command, cwd=shop.folder, env=shop.env, stdout=subprocess.PIPE, text=True)
    assert watcher.stdout.readline().startswith("ok       file: ")
    time.sleep(1)
    watcher.send_signal(signal.SIGINT)
    assert (watcher.communicate(timeout=60)[0], watcher.returncode) == ("", 0)


def test_doctor_tells_of_what_is_new_and_of_a_ledger_that_is_away(capsys):
    clock = Finding("error", "clock", "it is an hour off")
    rounds = iter([[], [clock], StoreError("it is away"), [clock], KeyboardInterrupt()])

    def look():
        came = next(rounds)
        if isinstance(came, BaseException):
            raise came
        return came

    _watch(look, 0.0, json=False)
    assert capsys.readouterr() == ("error    clock: it is an hour off\n", "onceward: it is away\n")
