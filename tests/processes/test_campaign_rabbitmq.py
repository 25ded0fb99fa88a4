"""A campaign on RabbitMQ: workers are killed, and the node and the ledger are restarted in the middle."""

import contextlib
import sys
import time

import pytest

from faults.campaign import campaign, own_ledger
from onceward import Once
from onceward.rabbitmq.redrive import RabbitRedrive
from places import WORKERS
from servers.rabbitmq import Rabbitmq

pytestmark = pytest.mark.nightly


@pytest.fixture
def node():
    """A node that keeps its messages over a kill."""
    server = Rabbitmq()
    yield server
    server.stop()


def test_each_message_of_a_rabbitmq_queue_takes_effect_once_under_fire(node, tmp_path, request):
    queue = node.queue("orders")

    def left():
        # A worker that is killed between a dead letter and its acknowledgement leaves two. The second one's key is completed.
        return sum(count for name, count in node.held().items() if not name.endswith("-dead"))

    def redrive(_):
        once = Once(ledger.url)
        with contextlib.suppress(Exception):
            # A kill may strike the last attempt, too: the effect commits with its record, so it has not happened.
            list(RabbitRedrive(once, queue, url=node.url, in_doubt="rerun").run())
        once.close()

    with own_ledger("postgresql", request, tmp_path) as (ledger, server):
        command = [sys.executable, WORKERS / "rabbit_worker.py", node.url, queue]
        time.sleep(6)  # a node that is killed right after a declaration forgets the quorum queue
        campaign(
            ledger,
            server,
            tmp_path,
            command=command,
            publish=lambda numbers: node.publish(queue, *[{"id": number} for number in numbers]),
            left=left,
            restart=node.restart,
            redrive=redrive,
        )
