"""What a member of a Kafka group has read counts for the assignment that it was read under, and no other."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from onceward.kafka.reading import TopicReader

PLACE = TopicPartition("t.onceward-retry", 0)


class Consumer:
    """Gives one record of an offset, and then none for ever."""

    def __init__(self, offset):
        record = SimpleNamespace(topic=PLACE.topic, partition=0, offset=offset, timestamp=1, headers=(), value=b"1")
        self._found = [{PLACE: [record]}]

    async def getmany(self, **_):
        if not self._found:
            await asyncio.Event().wait()
        return self._found.pop()

    def assignment(self):
        return {PLACE}

    def paused(self):
        return set()


@pytest.mark.parametrize(("rebalances", "committable"), [(False, 500), (True, None)])
def test_records_read_before_a_rebalance_do_not_hide_those_that_are_read_again(rebalances, committable):
    async def main():
        asked = asyncio.Event()

        async def ask():
            if rebalances:
                await reader.revoked()
                reader.assigned({PLACE})  # the same one, again from its committed offset
            asked.set()

        reader = TopicReader("t", PLACE.topic, "g", ask, order=False)
        reader._consumer = Consumer(500)
        reader.assigned({PLACE})
        reading = asyncio.create_task(reader._read())
        await asked.wait()
        await asyncio.sleep(0)
        reading.cancel()
        return reader._partitions[PLACE].committable

    assert asyncio.run(main()) == committable
