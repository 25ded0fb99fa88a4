"""``onceward work kafka:TOPIC`` as a command: a run, its figures, and its exit statuses."""

import json
import signal
import subprocess

import pytest

from commands.command_line import Cli
from waiting import PATIENCE, until

SHOP = """
def charge(order: dict) -> int:
    with open("charged", "a") as file:
        file.write(f"{order['id']}\\n")
    if order["id"] == 13:
        raise ValueError("no such account")
    return order["id"]
"""
STORE = ("--store", "sqlite:///l.db")


@pytest.fixture
def cli(tmp_path, kafka):
    (tmp_path / "shop.py").write_text(SHOP)
    made = Cli(tmp_path)
    made.env["KAFKA_SERVERS"] = kafka.servers
    return made


def command(topic, *arguments):
    return ("work", f"kafka:{topic}", "--call", "shop:charge", *STORE, *arguments)


def ran(cli, topic, *arguments):
    return cli.run(*command(topic, "--until-empty", *arguments), timeout=PATIENCE)


def order(number):
    return json.dumps({"id": number}).encode()


def test_a_run_to_the_end_of_a_topic_tells_of_each_record(cli, kafka, topic):
    kafka.send(topic, order(1), order(2), order(1), b"torn")
    told = ran(cli, topic, "--key", "order.id", "--json")
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    outcomes = [line["outcome"] for line in lines if "outcome" in line]
    assert sorted(outcomes) == ["done", "done", "malformed", "replayed"], told
    assert [line["summary"]["done"] for line in lines if "summary" in line] == [2]
    assert sorted(cli.log("charged")) == ["1", "2"]


@pytest.mark.nightly
def test_the_exit_status_tells_what_is_left(cli, kafka, topic):
    kafka.send(topic, order(1), b"torn")
    assert ran(cli, topic).returncode == 3
    kafka.send(topic, order(13))
    failing = cli.start(*command(topic, "--until-empty"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert failing.wait(PATIENCE) == 1
    told = ran(cli, "nowhere")
    assert (told.returncode, "topic nowhere does not exist" in told.stderr) == (4, True)
    told = ran(cli, topic, "--set", "settings.enable_auto_commit=1")
    assert (told.returncode, "enable_auto_commit" in told.stderr) == (2, True)


def test_a_signal_ends_it_and_commits_what_is_done(cli, kafka, topic):
    kafka.send(topic, order(1))
    running = cli.start(*command(topic, "--set", "group=till"))
    until(lambda: cli.log("charged") == ["1"])
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert kafka.committed("till", topic) == {0: 1}


@pytest.mark.nightly
def test_a_redrive_lets_a_parked_record_run_after_the_fix(cli, kafka, topic):
    def redriven(*arguments):
        return cli.run("redrive", f"kafka:{topic}", *STORE, *arguments, timeout=PATIENCE)

    kafka.send(topic, order(13))
    assert ran(cli, topic, "--key", "order.id", "--max-attempts", "1").returncode == 1
    seen = redriven("--dry-run")
    assert (seen.returncode, b"would be moved" in seen.stdout) == (0, True), seen
    done = redriven("--json")
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["moved"] == 1, done
    (cli.folder / "shop.py").write_text(SHOP.replace("== 13", "== 14"))
    assert ran(cli, topic, "--key", "order.id").returncode == 0
    assert cli.log("charged") == ["13", "13"]
    refused = redriven("--to", "orders")
    assert (refused.returncode, "leave --to" in refused.stderr) == (2, True)
