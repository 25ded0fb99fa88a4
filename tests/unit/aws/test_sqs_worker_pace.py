"""How a worker of SQS paces itself, without a queue: its pauses, its polls, and for how long it holds a message."""

import asyncio

import pytest

from onceward import Once
from onceward.aws import SqsWorker
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.visibility import Visibility
from onceward.consumers.delivery import Backoff
from onceward.consumers.polling import Polls
from onceward.testing.clock import ManualClock
from tables import each
from waiting import PATIENCE


def test_pauses_double_up_to_the_longest_and_are_never_less_than_half():
    backoff = Backoff(2.0, 900.0)
    for receives, most in ((1, 2), (2, 4), (5, 32), (9, 512), (10, 900), (5000, 900)):
        pauses = [backoff.seconds(receives) for _ in range(200)]
        assert most / 2 <= min(pauses) < max(pauses) <= most


class RecordedQueue:
    """Takes the place of a queue where 12 hours must pass."""

    name = "recorded"

    def __init__(self, clock):
        self.clock, self.ends = clock, []

    def change_many(self, holds):
        self.ends += [self.clock() + span for _, span in holds]
        return [None] * len(holds)


def test_a_message_is_held_for_twelve_hours_and_no_longer(caplog):
    clock = ManualClock(0.0)
    queue = RecordedQueue(clock)
    visibility = Visibility(queue, 600, clock)
    visibility.hold([Message("m-1", "r-1", "", {}, {})])
    while clock() < 50_000:
        visibility._extend(visibility._due())
        clock.advance(60)

    assert 43_190 < max(queue.ends) <= 43_200, "SQS refuses more"
    assert caplog.text.count("was held for 12 hours") == 1
    visibility.give_back("r-1", 5)
    assert not visibility._back, "it is no longer ours"


async def test_polls_that_wait_for_room_go_on_when_other_polls_bring_nothing():
    """Six polls are under way and two come back full; then handlers become slow, so that there is room for one poll only."""
    took, under_way = 0.01, []

    async def receive(count):
        told = asyncio.get_running_loop().create_future()
        under_way.append(told)
        return [Message("m", "r", "", {}, {})] * (count if await told else 0)

    async def asked(count):
        async with asyncio.timeout(PATIENCE):
            while len(under_way) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # what else there is to be asked is asked now

    polls = Polls(receive, lambda _: None, most=10, concurrency=10, typical=lambda: took, until_empty=False)
    running = asyncio.create_task(polls.run())
    for count in range(1, 7):  # after each that comes back full there is another one
        await asked(count)
        if count < 6:
            under_way.pop().set_result(True)
            await asked(count)
            for _ in range(10):
                polls.done()
    assert len(under_way) == 6
    for _ in range(2):
        under_way.pop(0).set_result(True)
    await asked(4)
    took = 10.0
    for _ in range(20):
        polls.done()
    await asked(4)
    assert len(under_way) == 4, "there is no room for more than these may bring"
    while under_way:
        under_way.pop().set_result(False)
    await asked(1)
    polls.stop()
    while not running.done():
        while under_way:
            under_way.pop().set_result(False)
        await asyncio.sleep(0.01)
    await running


@each(
    ("options", "says"),
    [
        ({"visibility": 0}, "visibility=0"),
        ({"grace": -1}, "grace=-1"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"unwrap": "s3"}, "unwrap='s3'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_when_the_worker_is_made(aws, options, says):
    with pytest.raises(ValueError, match=says.replace("(", "\\(")):
        SqsWorker(Once("memory:"), "orders", print, **options)
