"""Each event of a batch and a checkpoint, on memory and SQLite, sync and async."""

import asyncio
import threading

import pytest

from onceward import Once
from onceward.observe import Event

pytestmark = pytest.mark.sampled(url=1, awaiting=1)


@pytest.fixture(params=["memory:", "sqlite"])
def url(request, tmp_path):
    return "memory:" if request.param == "memory:" else f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def awaiting(request):
    return request.param


@pytest.fixture
def heard():
    return []


@pytest.fixture
def once(url, heard):
    once = Once(url, name="n", observe=[lambda event: heard.append(event) if isinstance(event, Event) else None])
    yield once
    once.close()


def run(once, handle, records, awaiting, time_left=None, **options):
    async def handle_async(record):
        return handle(record)

    batch = once.batch(handle_async if awaiting else handle, key="record.id", name="b", **options)
    if awaiting:
        return asyncio.run(batch.run_async(records, time_left=time_left))
    return batch.run(records, time_left=time_left)


def told(heard):
    return [(event.key, event.kind) for event in heard]


def work(record):
    if record.get("fails"):
        raise ValueError("the payload")
    return record["id"]


def test_each_record_is_claimed_and_then_ended(once, heard, awaiting):
    records = [{"id": 1}, {"id": 2, "fails": True}, {"id": 1}, {}]
    run(once, work, records, awaiting)
    assert told(heard) == [
        (None, "malformed"),
        ("b:1", "claimed"),
        ("b:2", "claimed"),
        ("b:1", "completed"),
        ("b:2", "failed"),
        ("b:1", "replayed"),  # the same key again in this batch
    ]
    assert {event.name for event in heard} == {"b"}
    assert isinstance(heard[4].error, ValueError)
    assert heard[0].error is not None
    assert all(event.ran is not None and event.left > 0 for event in heard[3:5])


def test_what_is_claimed_and_not_begun_is_given_back(once, heard, awaiting):
    class Interrupt(BaseException):
        pass

    def handle(record):
        raise Interrupt

    with pytest.raises(Interrupt):
        run(once, handle, [{"id": 1}, {"id": 2}], awaiting)
    assert told(heard) == [
        ("b:1", "claimed"),
        ("b:2", "claimed"),
        ("b:1", "interrupted"),
        ("b:2", "released"),
    ]


def test_an_observer_of_a_batch_may_use_the_ledger_and_its_interrupts_give_keys_back(url, awaiting):
    def observe(event):
        if event.kind == "completed":
            once.run(f"audit-{event.key}", int)
        if event.key == "b:9":
            raise KeyboardInterrupt

    once = Once(url, name="n", observe=[observe])
    assert [one.status for one in run(once, work, [{"id": 1}, {"id": 2}], awaiting)] == ["done"] * 2
    with pytest.raises(KeyboardInterrupt):
        run(once, work, [{"id": 9}], awaiting)
    assert once.ledger.stats()["COMPLETED"] == 4
    assert once.ledger.stats()["IN_PROGRESS"] == 0
    once.close()


def fill(once, flush, items, awaiting, **options):
    async def flush_async(held):
        flush(held)

    async def main():
        async with once.checkpoint(flush_async, key="item", name="c", **options) as sink:
            for item in items:
                await sink.add(item)

    if awaiting:
        asyncio.run(main())
        return
    with once.checkpoint(flush, key="item", name="c", **options) as sink:
        for item in items:
            sink.add(item)


def test_the_keys_of_a_flush_are_claimed_and_completed(once, heard, awaiting):
    fill(once, len, [1, 2], awaiting)
    fill(once, len, [2], awaiting)
    assert told(heard) == [
        ("c:1", "claimed"),
        ("c:2", "claimed"),
        ("c:1", "completed"),
        ("c:2", "completed"),
        ("c:2", "replayed"),
    ]


def test_an_observer_of_a_checkpoint_may_wait_for_another_thread_that_fills_it(url):
    added = []

    def observe(event):
        if event.kind == "completed" and not added:
            added.append(event.key)
            other = threading.Thread(target=lambda: added.append(sink.add(2)))
            other.start()
            other.join(60)

    once = Once(url, name="n", observe=[observe])
    with once.checkpoint(len, key="item", name="c") as sink:
        sink.add(1)
        sink.flush()
        assert added == ["c:1", "added"]
    once.close()
