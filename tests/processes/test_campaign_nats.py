"""A campaign on NATS JetStream: workers are killed, and the server and the ledger are restarted in the middle."""

import asyncio
import contextlib
import json
import sys

import nats
import pytest
from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from faults.campaign import campaign, own_ledger
from onceward import Once
from places import WORKERS
from servers.nats import Nats

pytestmark = pytest.mark.nightly


@pytest.fixture
def server():
    """A server that keeps its messages over a kill."""
    made = Nats()
    yield made
    made.stop()


def test_each_message_of_a_nats_subject_takes_effect_once_under_fire(server, tmp_path, request):
    def do(work):
        async def run():
            connection = await nats.connect(server.url, max_reconnect_attempts=1)
            try:
                return await work(connection.jetstream(timeout=30))
            finally:
                await connection.close()

        return asyncio.run(run())

    def publish(numbers):
        async def work(jetstream):
            for number in numbers:
                await jetstream.publish("orders", json.dumps({"id": number}).encode())

        do(work)

    async def left(jetstream):
        info = await jetstream.consumer_info("SHOP", "campaign")
        return info.num_pending + info.num_ack_pending

    def redrive(numbers):
        """Unpark each key, and send what is missing again."""
        once = Once(ledger.url)
        with contextlib.suppress(Exception):
            for record, _ in once.ledger.records(status="PARKED"):
                once.ledger.unpark(record.key)
            publish(numbers)
        once.close()

    async def prepare(jetstream):
        settings = StreamConfig(name="SHOP", subjects=["orders"], storage=StorageType.FILE)
        await jetstream.add_stream(settings)
        # What a killed worker held comes again soon.
        durable = ConsumerConfig(durable_name="campaign", filter_subject="orders", ack_wait=5.0, max_ack_pending=10_000)
        await jetstream.add_consumer("SHOP", durable)

    do(prepare)
    with own_ledger("postgresql", request, tmp_path) as (ledger, database):
        campaign(
            ledger,
            database,
            tmp_path,
            command=[sys.executable, WORKERS / "nats_worker.py", server.url, "orders"],
            publish=publish,
            left=lambda: do(left),
            restart=lambda: (server.kill(), server.start()),
            redrive=redrive,
        )
