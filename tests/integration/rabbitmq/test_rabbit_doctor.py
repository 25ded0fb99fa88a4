"""What doctor finds about a queue of RabbitMQ, on a real node."""

import os
import subprocess
import sys
import uuid

import pytest

from onceward import Policy
from onceward.rabbitmq.doctor import rabbitmq_findings
from places import SOURCES


@pytest.fixture(autouse=True)
def broker(rabbitmq, monkeypatch):
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)


def levels(address):
    return {(finding.level, finding.check) for finding in rabbitmq_findings(address, Policy())}


def test_a_quorum_queue_is_well_and_policies_are_skipped(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}")
    assert levels(f"amqp:{queue}") == {("ok", "queue"), ("skipped", "policies"), ("ok", "max_attempts")}
    rabbitmq.queue(f"{queue}.onceward-dead")
    assert ("ok", "dead letters") in levels(f"amqp:{queue}")
    rabbitmq.publish(f"{queue}.onceward-dead", {})
    assert ("warning", "dead letters") in levels(f"amqp:{queue}")


def test_a_queue_that_drops_messages_is_an_error_and_a_classic_one_a_warning(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}", kind="classic", x_max_length=5)
    assert {("error", "queue"), ("warning", "queue")} <= levels(f"amqp:{queue}")


def test_a_missing_queue_and_a_broker_that_is_away_are_told(monkeypatch):
    assert ("error", "queue") in levels(f"amqp:nowhere-{uuid.uuid4().hex}")
    monkeypatch.setenv("AMQP_URL", "amqp://guest:secret@127.0.0.1:1/")
    assert levels("amqp:orders") == {("unknown", "queue")}


def test_the_command_shows_it_and_ends_with_its_status(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}", x_delivery_limit=3)
    command = [sys.executable, "-m", "onceward", "doctor", "--queue", f"amqp:{queue}"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "ONCEWARD_STORE": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1, done
    assert "x-delivery-limit" in done.stdout
