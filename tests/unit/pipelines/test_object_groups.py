"""Messages that share an object of S3 do not share their ends."""

import asyncio

from onceward.pipelines.sinks.s3 import ObjectGrouping, _Member


def test_a_message_that_is_cancelled_cancels_no_other_of_its_object():
    async def joined():
        grouping = ObjectGrouping(_written, count=3, size=1_000_000, age=3600)
        members = [_Member(grouping, f"{number} 1", b"{}\n") for number in range(3)]
        tasks = [asyncio.create_task(member.joined()) for member in members[:2]]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        tasks.append(asyncio.create_task(members[2].joined()))
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, one, other = asyncio.run(asyncio.wait_for(joined(), 60))
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(one, str)
    assert one == other


async def _written(_name, _content):
    pass
