"""Checkpoints whose flush uses them, whose signal handlers flush, and whose tasks are cancelled."""

import asyncio
import gc
import signal

import pytest

from onceward import Once, OncewardError
from onceward.claim.heartbeat import HEARTBEAT
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore

PATIENCE = 10  # seconds after which something hangs


@pytest.fixture
def once():
    return Once(MemoryStore(), lease=10)


def item(name):
    return {"id": name}


def status(once, name):
    return once.store.records[f"sink:{name}"].status


def within_patience(work):
    """Run a coroutine in a new event loop; it fails when it hangs."""

    async def main():
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(main())


def test_a_plain_flush_that_raises_stop_iteration_does_not_hang_its_block(once):
    def write(items):
        next(iter(()))

    async def main():
        async with once.checkpoint(write, key="item.id", name="sink") as sink:
            await sink.add(item("a"))

    with pytest.raises(RuntimeError, match="StopIteration"):
        within_patience(main())
    assert status(once, "a") == RELEASED


@pytest.mark.parametrize("how", ["task", "thread"])
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


class Slow(MemoryStore):
    """A ledger whose answers take two turns of the event loop: one before the request is carried out, one after."""

    async def exchange_async(self, request):
        await asyncio.sleep(0)
        reply = self.exchange(request)
        await asyncio.sleep(0)
        return reply


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_checkpoint_cancelled_at_any_point_leaves_nothing_undecided(cancels):
    names = ["a", "b", "c", "d", "e"]

    async def trial(turns):
        once = Once(Slow(), lease=10)
        began, ended, done = [], [], []

        async def write(items):
            began.extend(one["id"] for one in items)
            await asyncio.sleep(0)
            ended.extend(one["id"] for one in items)

        async def run():
            async with once.checkpoint(write, key="item.id", name="sink", count=2, on_done=done.extend) as sink:
                for name in names:
                    await sink.add(item(name))

        task = asyncio.ensure_future(run())
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((task,))
        for name in names:
            record = once.store.records.get(f"sink:{name}")
            found = None if record is None else record.status
            if name in ended:
                assert found == COMPLETED, name
            elif name in began:
                assert found == IN_PROGRESS, name
            else:
                assert found in {None, RELEASED}, name
        assert {one["id"] for one in done} <= set(ended)
        over = not task.cancelled()
        del task
        gc.collect()
        assert not [claim for weak in HEARTBEAT._claims.values() if (claim := weak()) and claim.store is once.store]
        return over

    async def main():
        turns = 0
        while not await trial(turns):
            turns += 1
        assert turns > 20

    asyncio.run(main())
