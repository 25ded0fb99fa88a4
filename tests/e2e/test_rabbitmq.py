"""``onceward rabbitmq`` as a command: a run to the end of a queue, and its exit statuses."""

import json
import os
import subprocess
import sys
import time
import uuid

import pytest

from places import SOURCES

SHOP = """
def charge(order: dict) -> int:
    with open("charged", "a") as file:
        file.write(f"{order['id']}\\n")
    return order["id"]
"""
PATIENCE = 120.0


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def ran(shop, rabbitmq, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "AMQP_URL": rabbitmq.url, "ONCEWARD_STORE": ""}
    command = [
        sys.executable,
        "-m",
        "onceward",
        "rabbitmq",
        *arguments,
        "--call",
        "shop:charge",
        "--store",
        "sqlite:///l.db",
    ]
    return subprocess.run(command, cwd=shop, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def test_a_run_to_the_end_of_a_queue_tells_of_each_message(shop, rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}")
    rabbitmq.publish(queue, {"id": 1}, {"id": 2}, {"id": 1}, b"torn")
    done = ran(shop, rabbitmq, queue, "--key", "order.id", "--until-empty", "--json")
    outcomes = [line["outcome"] for line in map(json.loads, done.stdout.splitlines()) if "outcome" in line]
    assert sorted(outcomes) == ["done", "done", "malformed", "replayed"], done
    assert done.returncode == 3
    assert sorted((shop / "charged").read_text().split()) == ["1", "2"]
    assert rabbitmq.ready(f"{queue}.onceward-dead") == 1


def test_a_queue_that_loses_messages_ends_the_command(shop, rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}", x_max_length=5)
    done = ran(shop, rabbitmq, queue)
    assert done.returncode == 4
    assert "loses messages" in done.stderr


def test_redrive_sends_dead_letters_again_and_unparks_their_keys(shop, rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}")
    (shop / "shop.py").write_text("def charge(order: dict):\n    raise ValueError('no such account')\n")
    rabbitmq.publish(queue, {"id": 7}, headers={"who": "us"})
    options = ("--key", "order.id", "--name", "shop", "--until-empty")
    deadline = time.monotonic() + PATIENCE
    while (
        rabbitmq.ready(f"{queue}.onceward-dead") == 0
    ):  # the first run ends while the message waits for its second try
        assert time.monotonic() < deadline
        ran(shop, rabbitmq, queue, *options, "--max-attempts", "1")
    (shop / "shop.py").write_text(SHOP)

    def redriven(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), "AMQP_URL": rabbitmq.url}
        command = [
            sys.executable,
            "-m",
            "onceward",
            "redrive",
            f"amqp:{queue}",
            "--store",
            "sqlite:///l.db",
            *arguments,
        ]
        return subprocess.run(command, cwd=shop, env=environment, capture_output=True, text=True, timeout=PATIENCE)

    assert "would be moved" in redriven("--dry-run").stdout
    assert rabbitmq.ready(f"{queue}.onceward-dead") == 1
    done = redriven()
    assert (done.returncode, "shop:7" in done.stdout) == (0, True), done
    (message,) = rabbitmq.take(queue)
    assert message.headers == {"who": "us", "x-delivery-count": 0}
    rabbitmq.publish(queue, {"id": 7})
    assert ran(shop, rabbitmq, queue, *options).returncode == 0
    assert (shop / "charged").read_text().split() == ["7"]
