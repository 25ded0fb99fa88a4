"""Cancellations and interrupts of a settling: however many there are, its outcome is recorded and the loop ends."""

import asyncio
import gc

import pytest

from onceward import Once
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before, settling
from tables import each


class Failure(Exception):
    pass


class Slow(MemoryStore):
    """Cut off before a request has its effect, as one to a server may be."""

    def __init__(self):
        super().__init__()
        self.settling = asyncio.Event()

    async def exchange_async(self, request):
        if self.records:
            self.settling.set()
        await asyncio.sleep(0.02)
        return await super().exchange_async(request)


@each("fails", [False, True])
@each("times", [1, 2, 3, 50])
def test_however_often_a_settling_is_cancelled_it_reaches_its_end(times, fails):
    async def handle():
        if fails:
            raise Failure
        return "done"

    async def main():
        store = Slow()
        once = Once(store, name="n")
        task = asyncio.create_task(once.run_async("k", handle))
        await store.settling.wait()
        for _ in range(times):  # as anyio's scopes do, at every turn of the loop
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        if times < 3:  # who is patient finds it recorded
            assert [record.status for record in store.records.values()] == [RELEASED if fails else COMPLETED]
        return store

    store = asyncio.run(main())  # which cancels what still runs, and waits for it
    assert [record.status for record in store.records.values()] == [RELEASED if fails else COMPLETED]


@each("interrupt", [KeyboardInterrupt, SystemExit])
@each("times", [1, 2, 3])
def test_interrupts_of_a_settling_end_the_loop_and_reach_who_runs_it(times, interrupt):
    left = [fail_before(interrupt)] * times
    store = Faults(MemoryStore(), lambda ask: left.pop() if left and settling(ask) else None)

    async def handle():
        return "done"

    with asyncio.Runner() as runner:  # which raises again what a task that is left over has for it
        with pytest.raises(interrupt):
            runner.run(Once(store, name="n").run_async("k", handle))
        assert not asyncio.all_tasks(runner.get_loop())
    assert not left
    assert [record.status for record in store.store.records.values()] == [COMPLETED if times < 3 else IN_PROGRESS]


def test_giving_back_what_an_interrupted_claim_has_won_is_tried_again():
    faults = [fail_after(KeyboardInterrupt), None, fail_before(), fail_after()]
    store = Faults(MemoryStore(), lambda _: faults.pop(0) if faults else None)
    with pytest.raises(KeyboardInterrupt):
        Once(store, name="n").run("k", pytest.fail)
    (record,) = store.store.records.values()
    assert (record.status, record.attempts, faults) == (RELEASED, 0, [])


@pytest.mark.filterwarnings("error")
def test_a_loop_that_ends_right_after_a_cancellation_records_the_end_and_warns_of_no_coroutine():
    async def main():
        store = Slow()
        task = asyncio.create_task(Once(store, name="n").run_async("k", asyncio.sleep, 0))
        await store.settling.wait()
        task.cancel()  # its end gets a task, which is cancelled before it begins
        return store

    store = asyncio.run(main())
    gc.collect()
    assert [record.status for record in store.records.values()] == [COMPLETED]
