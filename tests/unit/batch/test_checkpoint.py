"""Checkpoints: what is added is claimed, flushed once and recorded together, or given back together. In both forms."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import closing_fixture
from onceward import Busy, KeyMissing, Mismatch, Once, OncewardError, Parked
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues.batches import PATIENCE
from queues.checkpoints import NAME, Awaiting, Blocking, Refused, Sink, filled, items, statuses
from tables import each

pytestmark = pytest.mark.sampled(form=1, seed=3)


form = closing_fixture(lambda request: request.param(), params=[Blocking, Awaiting])


def test_leaving_the_block_flushes_in_order_and_completes_all(once, sink, form):
    seen = []

    with form.open(once, sink, on_done=lambda items: seen.append(statuses(once))) as checkpoint:
        assert [checkpoint.add(item) for item in items(3, 1, 2)] == ["added"] * 3
        assert (sink.flushes, statuses(once)) == ([], dict.fromkeys("123", IN_PROGRESS))
    assert sink.flushes == [items(3, 1, 2)]
    assert seen == [dict.fromkeys("123", COMPLETED)]
    with pytest.raises(OncewardError, match="closed"):
        checkpoint.add({"id": 4})
    with pytest.raises(OncewardError, match="closed"):
        checkpoint.flush()
    assert filled(form, once, sink, 1, 2) == ["replayed"] * 2
    assert sink.flushes == [items(3, 1, 2)]


def test_a_buffered_key_with_another_fingerprint_is_a_mismatch_alone(once, sink, form):
    with form.open(once, sink, fingerprint=True) as checkpoint:
        checkpoint.add({"id": 1, "sum": 5})
        with pytest.raises(Mismatch):
            checkpoint.add({"id": 1, "sum": 6})
        assert checkpoint.add({"id": 1, "sum": 5}) == "buffered"
    assert sink.flushes == [[{"id": 1, "sum": 5}]]


def test_it_flushes_at_a_count_of_new_items_and_when_told(once, sink, form):
    with form.open(once, sink, count=2) as checkpoint:
        for item in items(1, 1, 1):
            checkpoint.add(item)
        assert sink.flushes == []
        for item in items(2, 1, 3):
            checkpoint.add(item)
        assert (sink.flushes, sink.done) == ([items(1, 2)], items(1, 1, 1, 2))
        checkpoint.flush()
        assert statuses(once)["3"] == COMPLETED
        checkpoint.add({"id": 4})
    assert sink.flushes == [items(1, 2), items(3), items(4)]


@each(
    ("sizes", "flushed"),
    [((4, 6), [[0, 1]]), ((4, 7), [[0]]), ((11,), [[0]]), ((4, 11), [[0], [1]]), ((4, 5), []), ((10,), [[0]])],
)
def test_it_flushes_before_there_are_too_many_bytes_and_when_it_is_full(form, sizes, flushed):
    sink = Sink()
    with form.open(Once("memory:"), sink, key=lambda text: text[:1], bytes=10) as checkpoint:
        for number, size in enumerate(sizes):
            checkpoint.add(str(number) * size)
        assert [[int(text[0]) for text in flush] for flush in sink.flushes] == flushed


@each(("item", "size"), [(b"12345", 5), ("é12", 4), ({"id": 1}, 8), (bytearray(b"123"), 3)])
def test_bytes_are_those_of_bytes_of_utf8_and_of_json(form, item, size):
    sink = Sink()
    for least, flushes in ((size, [[item]]), (size + 1, [])):
        sink.flushes.clear()
        with form.open(Once("memory:"), sink, key=lambda item: 1, bytes=least) as checkpoint:
            checkpoint.add(item)
            assert sink.flushes == flushes


def test_what_cannot_be_counted_is_refused_unless_size_counts_it(once, sink, form):
    strange = {"id": 1, "what": object()}
    with form.open(once, sink, bytes=10) as checkpoint:
        with pytest.raises(TypeError, match="size="):
            checkpoint.add(strange)
        assert statuses(once) == {}
    with form.open(once, sink, bytes=10, size=lambda item: 10) as checkpoint:
        checkpoint.add(strange)
        assert sink.flushes == [[strange]]


def test_the_age_is_counted_on_the_owners_clock(sink, form):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock, lease=10_000)
    with form.open(once, sink, age=5_000) as checkpoint:  # a timer's real seconds are never over here
        checkpoint.add({"id": 1})
        clock.advance(4_000)
        checkpoint.add({"id": 2})
        assert sink.flushes == []
        clock.advance(1_000)
        checkpoint.add({"id": 3})
        form.until(lambda: sink.flushes)
        assert sink.flushes[0] in (items(1, 2, 3), items(1, 2))  # the second by a timer that a busy machine starts late


@pytest.mark.parametrize("call", ["add", "leave", "raise"])
def test_an_error_of_a_flush_by_age_is_raised_by_the_next_call(once, sink, form, call):
    sink.error = Refused("no")
    with pytest.raises((Refused, ZeroDivisionError)) as caught:
        with form.open(once, sink, age=0.05) as checkpoint:
            checkpoint.add({"id": 1})
            form.until(lambda: statuses(once) == {"1": RELEASED})
            if call == "add":
                checkpoint.add({"id": 2})
            elif call == "raise":
                raise ZeroDivisionError
    assert statuses(once) == {"1": RELEASED}
    assert type(caught.value) is Refused or "Refused('no')" in caught.value.__notes__[0]


def test_an_item_that_cannot_be_added_disturbs_no_other(once, sink, form):
    held = once.acquire(2, name=NAME)
    once.acquire(3, name=NAME).park("by hand")
    with form.open(once, sink) as checkpoint:
        checkpoint.add({"id": 1})
        for item, error in (({"id": 2}, Busy), ({"id": 3}, Parked), ({"number": 4}, KeyMissing)):
            with pytest.raises(error):
                checkpoint.add(item)
        checkpoint.add({"id": 5})
    assert sink.flushes == [items(1, 5)]
    assert not held.lost


@pytest.mark.slow
def test_claims_are_renewed_while_their_items_wait_and_while_the_flush_runs(once, sink, form):
    sink.during = lambda: time.sleep(1.2)
    with form.open(once, sink, lease=0.9) as checkpoint:
        checkpoint.add({"id": 1})
        form.sleep(1.2)
        with pytest.raises(Busy):
            once.acquire(1, name=NAME)
    assert sink.flushes == [items(1)]
    assert statuses(once) == {"1": COMPLETED}


def written(sink):
    assert max(len(flush) for flush in sink.flushes) <= 7
    return sorted(item["id"] for flush in sink.flushes for item in flush)


def test_threads_share_a_checkpoint(once, sink):
    with once.checkpoint(sink.write, key="item.id", name=NAME, count=7, age=0.01) as checkpoint:
        with ThreadPoolExecutor(6) as pool:
            for n in range(0, 60, 10):
                pool.submit(lambda n=n: [checkpoint.add({"id": number}) for number in range(n, n + 30)])
    assert written(sink) == list(range(80))
    assert set(statuses(once).values()) == {COMPLETED}


async def test_tasks_share_a_checkpoint_and_leave_none_behind(once, sink):
    async with once.checkpoint(sink.write_async, key="item.id", name=NAME, count=7, age=0.01) as checkpoint:
        await asyncio.gather(*(checkpoint.add({"id": number % 80}) for number in range(180)))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - {asyncio.current_task()} == set()
    assert written(sink) == list(range(80))


async def test_a_plain_flush_runs_in_a_thread_beside_the_event_loop(once):
    threads = []

    write = lambda items: threads.append(threading.current_thread())
    async with once.checkpoint(write, key="item.id", name=NAME) as checkpoint:
        await checkpoint.add({"id": 1})
    assert threads != [threading.current_thread()]
    assert statuses(once) == {"1": COMPLETED}


def test_a_coroutine_function_needs_async_with(once, sink):
    for options in ({}, {"on_done": sink.done_async}):
        with pytest.raises(TypeError, match="async with"):
            with once.checkpoint(sink.write if options else sink.write_async, key="item.id", name=NAME, **options):
                pass


def test_flush_cannot_use_its_own_checkpoint(once):
    with pytest.raises(OncewardError, match="cannot use it"):
        with once.checkpoint(lambda items: checkpoint.add({"id": 2}), key="item.id", name=NAME) as checkpoint:
            checkpoint.add({"id": 1})
    assert statuses(once) == {"1": RELEASED}


def test_checkpoints_whose_flushes_use_each_other_are_refused(once):
    to_second, to_first = (lambda items: second.add(items[0])), (lambda items: first.add({"id": 2}))
    options = {"key": "item.id", "count": 1}
    with pytest.raises(OncewardError, match="cannot use it"):
        with (
            once.checkpoint(to_second, name=NAME, **options) as first,
            once.checkpoint(to_first, name="second", **options) as second,
        ):
            first.add({"id": 1})
    assert set(statuses(once).values()) == {RELEASED}


@pytest.mark.parametrize("how", ["task", "thread"])
async def test_a_flush_that_uses_its_checkpoint_in_another_task_does_not_hang(once, how):
    async def write_in_a_task(items):
        await asyncio.gather(sink.add({"id": 2}))

    def write_in_a_thread(items):
        asyncio.run_coroutine_threadsafe(sink.add({"id": 2}), loop).result(PATIENCE / 2)

    loop = asyncio.get_running_loop()
    write = write_in_a_task if how == "task" else write_in_a_thread
    with pytest.raises(OncewardError, match="cannot use it"):
        async with asyncio.timeout(PATIENCE), once.checkpoint(write, key="item.id", name=NAME) as sink:
            await sink.add({"id": 1})
    assert statuses(once) == {"1": RELEASED}


@each(
    ("option", "value"),
    [("count", 0), ("count", True), ("bytes", -1), ("age", 0), ("age", "1"), ("lease", -1), ("nonsense", 5)],
)
def test_options_that_are_not_valid_are_refused_before_anything_runs(once, option, value):
    with pytest.raises((ValueError, TypeError), match=option):
        once.checkpoint(lambda items: None, **{"key": "item.id", "name": NAME, option: value})
