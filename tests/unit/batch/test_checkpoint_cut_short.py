"""Checkpoints whose flush uses them, and whose signal handlers flush. Cancellations are in test_batch_cut_short.py."""

import asyncio
import signal

import pytest

from onceward import Once, OncewardError
from onceward.batch.checkpoint.awaiting import AsyncCheckpoint
from onceward.batch.checkpoint.blocking import Checkpoint
from onceward.core.record import COMPLETED, RELEASED
from onceward.stores.memory import MemoryStore
from queues.batches import PATIENCE, within_patience
from tables import each


def item(name):
    return {"id": name}


def status(once, name):
    return once.store.records[f"sink:{name}"].status


def test_a_plain_flush_that_raises_stop_iteration_does_not_hang_its_block(once):
    def write(items):
        next(iter(()))

    async def main():
        async with once.checkpoint(write, key="item.id", name="sink") as sink:
            await sink.add(item("a"))

    with pytest.raises(RuntimeError, match="StopIteration"):
        within_patience(main())
    assert status(once, "a") == RELEASED


@each("how", ["task", "thread"])
def test_a_flush_that_uses_its_checkpoint_in_another_task_does_not_hang(once, how):
    async def write_in_a_task(items):
        await asyncio.gather(sink.add(item("b")))

    def write_in_a_thread(items):
        asyncio.run_coroutine_threadsafe(sink.add(item("b")), loop).result(PATIENCE / 2)

    async def main():
        nonlocal sink, loop
        loop = asyncio.get_running_loop()
        write = write_in_a_task if how == "task" else write_in_a_thread
        async with once.checkpoint(write, key="item.id", name="sink") as sink:
            await sink.add(item("a"))

    sink = loop = None
    with pytest.raises(OncewardError, match="cannot use it"):
        within_patience(main())
    assert status(once, "a") == RELEASED


def test_a_task_that_a_flush_has_started_may_add_when_the_flush_is_over(once):
    written, started = [], []

    async def later():
        await over.wait()
        return await sink.add(item("b"))

    async def write(items):
        written.append([one["id"] for one in items])
        if not started:
            started.append(asyncio.create_task(later()))

    async def main():
        nonlocal sink, over
        over = asyncio.Event()
        async with once.checkpoint(write, key="item.id", name="sink") as sink:
            await sink.add(item("a"))
            await sink.flush()
            over.set()
            assert await started[0] == "added"

    sink = over = None
    within_patience(main())
    assert written == [["a"], ["b"]]


def test_a_signal_handler_that_flushes_does_not_flush_anything_twice(once):
    written, refused, sent = [], [], []

    class Items(dict):
        """What the checkpoint holds, with a signal that comes just when it is taken out."""

        def values(self):
            if not sent:
                sent.append(signal.raise_signal(signal.SIGUSR1))
            return super().values()

    def flush(number, frame):
        try:
            sink.flush()
        except OncewardError as error:
            refused.append(error)

    before = signal.signal(signal.SIGUSR1, flush)
    try:
        with once.checkpoint(lambda items: written.append(list(items)), key="item.id", name="sink") as sink:
            sink._state._held = Items()
            sink.add(item("a"))
            sink.flush()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert written == [[item("a")]]
    assert len(refused) == 1
    assert status(once, "a") == COMPLETED


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_claims_are_not_renewed_after_an_interrupt_before_the_last_flush(awaited, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    for kind in (Checkpoint, AsyncCheckpoint):
        monkeypatch.setattr(kind, "_flush", interrupted)
    once = Once(MemoryStore(), name="sink", lease=0.3)
    checkpoint = once.checkpoint(lambda items: None, key="item.id", name="sink")

    async def main():
        async with checkpoint as sink:
            await sink.add(item("a"))

    with pytest.raises(KeyboardInterrupt):
        if awaited:
            asyncio.run(main())
        else:
            with checkpoint as sink:
                sink.add(item("a"))
    assert once.acquire("a", on_busy=PATIENCE / 2).attempt == 2
