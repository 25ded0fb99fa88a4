"""A campaign on a Kafka topic: workers are killed, the broker and the ledger are restarted, and poison is redriven."""

import json
import sys

import pytest

from faults.campaign import campaign, own_ledger
from onceward import Once
from onceward.kafka import KafkaRedrive
from servers.kafka import Kafka

pytestmark = pytest.mark.nightly


@pytest.fixture
def broker():
    """A broker of this test's own, with the topic ``orders``."""
    server = Kafka()
    server.make("orders", partitions=8)
    yield server
    server.stop()


def test_each_record_of_a_topic_takes_effect_once_under_fire(broker, tmp_path, request):
    def publish(numbers):
        broker.send("orders", *(json.dumps({"id": number}).encode() for number in numbers))

    def restart():
        broker.kill()
        broker.start()

    def redrive(_):
        once = Once(ledger.url)
        # A worker was killed in the last attempt of some: their effects were not made, as poison fails before.
        for _ in KafkaRedrive(once, "orders", servers=broker.servers, in_doubt="rerun").run():
            pass
        once.close()

    with own_ledger("postgresql", request, tmp_path) as (ledger, server):
        command = [
            sys.executable,
            "-m",
            "onceward",
            "work",
            "kafka:orders",
            "--call",
            "faults.campaign_effects:handle_async",
        ]
        command += ["--key", "order.id", "--name", "campaign", "--store", ledger.url, "--lease", 4, "--max-attempts", 4]
        command += ["--set", "settings.session_timeout_ms=6000", "--set", "settings.heartbeat_interval_ms=1000"]
        campaign(
            ledger,
            server,
            tmp_path,
            command=command,
            publish=publish,
            left=lambda: broker.lag("campaign", "orders", "orders.onceward-retry"),
            restart=restart,
            redrive=redrive,
            kill_every=20.0,
            environment={"KAFKA_SERVERS": broker.servers},
        )
