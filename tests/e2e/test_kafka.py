"""``onceward kafka`` as a command: a run, its figures, and its exit statuses."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from places import SOURCES

SHOP = """
import json, os, time

def charge(order: dict) -> int:
    with open("charged", "a") as file:
        file.write(f"{order['id']}\\n")
    if order["id"] == 13:
        raise ValueError("no such account")
    return order["id"]
"""
PATIENCE = 180.0


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def started(shop, kafka, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "KAFKA_SERVERS": kafka.servers, "ONCEWARD_STORE": ""}
    command = [
        sys.executable,
        "-m",
        "onceward",
        "kafka",
        *arguments,
        "--call",
        "shop:charge",
        "--store",
        "sqlite:///l.db",
    ]
    return subprocess.Popen(
        command, cwd=shop, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def charged(shop):
    path = shop / "charged"
    return path.read_text().split() if path.exists() else []


def order(number):
    return json.dumps({"id": number}).encode()


def test_a_run_to_the_end_of_a_topic_tells_of_each_record(shop, kafka, topic):
    kafka.send(topic, order(1), order(2), order(1), b"torn")
    out, err = started(shop, kafka, topic, "--key", "order.id", "--until-empty", "--json").communicate(timeout=PATIENCE)
    lines = [json.loads(line) for line in out.splitlines()]
    outcomes = [line["outcome"] for line in lines if "outcome" in line]
    assert sorted(outcomes) == ["done", "done", "malformed", "replayed"], (out, err)
    assert [line["summary"]["done"] for line in lines if "summary" in line] == [2]
    assert sorted(charged(shop)) == ["1", "2"]


def ended(shop, kafka, *arguments):
    process = started(shop, kafka, *arguments)
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, err


def test_the_exit_status_tells_what_is_left(shop, kafka, topic):
    kafka.send(topic, order(1), b"torn")
    assert ended(shop, kafka, topic, "--until-empty")[0] == 3
    kafka.send(topic, order(13))
    assert ended(shop, kafka, topic, "--until-empty")[0] == 1
    status, told = ended(shop, kafka, "nowhere", "--until-empty")
    assert (status, "topic nowhere does not exist" in told) == (4, True)
    status, told = ended(shop, kafka, topic, "--setting", "enable_auto_commit=1")
    assert (status, "enable_auto_commit" in told) == (2, True)


def test_a_signal_ends_it_and_commits_what_is_done(shop, kafka, topic):
    kafka.send(topic, order(1))
    running = started(shop, kafka, topic, "--group", "till")
    end = time.monotonic() + PATIENCE
    while charged(shop) != ["1"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert kafka.committed("till", topic) == {0: 1}


def redriven(shop, kafka, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "KAFKA_SERVERS": kafka.servers}
    command = [sys.executable, "-m", "onceward", "redrive", *arguments, "--store", "sqlite:///l.db"]
    return subprocess.run(command, cwd=shop, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def test_a_redrive_lets_a_parked_record_run_after_the_fix(shop, kafka, topic):
    kafka.send(topic, order(13))
    assert ended(shop, kafka, topic, "--key", "order.id", "--max-attempts", "1", "--until-empty")[0] == 1
    seen = redriven(shop, kafka, f"kafka:{topic}", "--dry-run")
    assert (seen.returncode, "would be moved" in seen.stdout) == (0, True), seen
    done = redriven(shop, kafka, f"kafka:{topic}", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["moved"] == 1, done
    (shop / "shop.py").write_text(SHOP.replace("== 13", "== 14"))
    assert ended(shop, kafka, topic, "--key", "order.id", "--until-empty")[0] == 0
    assert charged(shop) == ["13", "13"]
    refused = redriven(shop, kafka, f"kafka:{topic}", "--to", "orders")
    assert (refused.returncode, "leave --to" in refused.stderr) == (2, True)
