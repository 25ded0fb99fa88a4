"""The broker of the tests: killed, it comes back with what it has acknowledged."""

import pytest

from servers.kafka import Kafka


@pytest.mark.nightly
def test_a_killed_broker_comes_back_with_its_records():
    broker = Kafka()
    try:
        broker.make("orders", partitions=2)
        broker.send("orders", b"1", b"2", partition=1, trace="t")
        broker.kill()
        broker.start()
        found = [(record.partition, record.offset, record.value) for record in broker.read("orders")]
        assert found == [(1, 0, b"1"), (1, 1, b"2")]
        assert broker.committed("nobody", "orders") == {}
    finally:
        broker.stop()
