"""A campaign on an SQS queue without dead letters: processes are killed, and the queue and the ledger are restarted in the middle."""

import contextlib
import json
import sys

import pytest

from faults.campaign import MESSAGES, campaign, own_ledger
from onceward import Once, OncewardError
from onceward.aws.dead_letters.letters import unpark_to
from onceward.aws.sqs.queue import Queue
from servers.ministack import Ministack

pytestmark = pytest.mark.nightly


@pytest.fixture
def queues(tmp_path):
    """A queue server that keeps its messages over a restart."""
    server = Ministack("sqs", folder=tmp_path / "sqs")
    yield server
    server.stop()


def test_each_message_of_an_sqs_queue_takes_effect_once_under_fire(queues, aws, tmp_path, request, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", queues.url)
    queue = queues.queue("orders")

    def publish(numbers):
        for first in range(0, len(numbers), 10):
            bodies = [json.dumps({"id": number}) for number in numbers[first : first + 10]]
            entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
            assert not queues.ask("AmazonSQS.SendMessageBatch", QueueUrl=queue, Entries=entries).get("Failed")

    def redrive(_):
        once = Once(ledger.url)
        for record, _ in once.ledger.records(status="PARKED"):
            with contextlib.suppress(OncewardError):  # its message is not kept yet
                unpark_to(once.ledger, record.key, Queue(queue))
        once.close()

    with own_ledger("dynamodb", request, tmp_path) as (ledger, server):
        command = [
            sys.executable,
            "-m",
            "onceward",
            "work",
            f"sqs:{queue}",
            "--call",
            "faults.campaign_effects:handle_async",
        ]
        command += ["--key", "order.id", "--name", "campaign", "--store", ledger.url, "--lease", 4, "--max-attempts", 4]
        campaign(
            ledger,
            server,
            tmp_path,
            command=[*command, "--set", "visibility=4", "--set", "wait=2"],
            publish=publish,
            left=lambda: queues.left(queue),
            restart=queues.restart,
            redrive=redrive,
            messages=10 * MESSAGES,
            rate=400,
            poison=500,
        )
