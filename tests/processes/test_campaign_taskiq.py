"""A campaign on Taskiq: workers are killed, and Redis and the ledger are restarted in the middle."""

import contextlib
import json
import sys
import threading
from pathlib import Path

import pytest

from faults.campaign import campaign, own_ledger
from onceward import Once
from servers.redis import Redis

pytestmark = pytest.mark.nightly

WORKER = Path(__file__).parent.parent / "support/workers/taskiq_worker.py"
QUEUE, DEAD = "campaign", "campaign.onceward-dead"


@pytest.fixture
def broker():
    """A Redis that keeps what it has acknowledged."""
    server = Redis(appendonly="yes", appendfsync="always")
    yield server
    server.stop()


def body(number):
    told = {"task_id": f"t-{number}", "task_name": "handle", "labels": {"retry_on_error": "True"}, "labels_types": {}}
    return json.dumps({**told, "args": [{"id": number}], "kwargs": {}})


def test_each_task_takes_effect_once_on_taskiq(broker, tmp_path, request):
    def publish(numbers):
        with broker.client() as client:
            for number in numbers:
                client.xadd(QUEUE, {"data": body(number)})

    def left():
        with broker.client() as client:
            (group,) = client.xinfo_groups(QUEUE)
            return max(0, group["pending"] + (group["lag"] or 0) - 1)  # a tick may be on its way

    def redrive(_):
        once = Once(ledger.url)
        for record, _ in once.ledger.records(status="PARKED"):
            once.ledger.unpark(record.key)
        once.close()
        with broker.client() as client:
            for letter, fields in client.xrange(DEAD):
                client.xadd(QUEUE, {"data": body(json.loads(fields["data"])["args"][0]["id"])})
                client.xdel(DEAD, letter)

    def restart():
        broker.kill()
        broker.start()

    def ticking():
        told = {"task_name": "tick", "labels": {}, "labels_types": {}, "args": [], "kwargs": {}}
        while not over.wait(1.0):
            with contextlib.suppress(Exception), broker.client() as client:  # the broker is starting
                client.xadd(QUEUE, {"data": json.dumps({**told, "task_id": "tick"})})

    over = threading.Event()
    ticks = threading.Thread(target=ticking, daemon=True)
    ticks.start()
    with own_ledger("dynamodb", request, tmp_path) as (ledger, server):
        campaign(
            ledger,
            server,
            tmp_path,
            command=[sys.executable, WORKER],
            publish=publish,
            left=left,
            restart=restart,
            redrive=redrive,
            environment={"TASKIQ_BROKER": broker.url},
        )
    over.set()
    ticks.join()
