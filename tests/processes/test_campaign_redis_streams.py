"""A campaign on Redis Streams: workers are killed, and the server and the ledger are restarted in the middle."""

import contextlib
import json
import sys

import pytest

from faults.campaign import campaign, own_ledger
from onceward import Once
from places import WORKERS
from servers.redis import Redis

pytestmark = pytest.mark.nightly


@pytest.fixture
def server():
    """A server that keeps its entries over a kill."""
    made = Redis(appendonly="yes", appendfsync="always")
    yield made
    made.stop()


def test_each_entry_of_a_redis_stream_takes_effect_once_under_fire(server, tmp_path, request):
    def publish(numbers):
        with server.client() as client:
            for number in numbers:
                client.xadd("orders", {"__data__": json.dumps({"data": json.dumps({"id": number})})})

    def left():
        with server.client() as client:
            (group,) = client.xinfo_groups("orders")
            return group["pending"] + group["lag"]

    def redrive(numbers):
        """Unpark each key, and send what is missing again."""
        once = Once(ledger.url)
        with contextlib.suppress(Exception):
            for record, _ in once.ledger.records(status="PARKED"):
                once.ledger.unpark(record.key)
            publish(numbers)
        once.close()

    with own_ledger("postgresql", request, tmp_path) as (ledger, database):
        campaign(
            ledger,
            database,
            tmp_path,
            command=[sys.executable, WORKERS / "redis_streams_worker.py", server.url, "orders"],
            publish=publish,
            left=left,
            restart=server.restart,
            redrive=redrive,
        )
