"""Storms of cancellations over one SQLite ledger: nothing is lost, run twice after it was recorded, or left claimed in vain.

No task of a storm is cancelled more than twice: whoever interrupts a settling more often is let go before it is over.
"""

import asyncio
import gc
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.processes import PATIENCE
from onceward import Busy, Completed, LeaseLost, Once, current
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before, settling
from tables import each

LEASE = 1.0  # seconds; many times what a handler takes
WORKERS = 18  # of each loop
ENOUGH = 50  # cancellations of a storm


class Failure(Exception):
    pass


class Storm:
    """What is seen from outside: which claims entered a handler, which keys were finished, which were reported done."""

    def __init__(self, path, seed):
        self.once = Once(f"sqlite:///{path}", name="storm", lease=LEASE)
        self.rng = random.Random(seed)
        self.keys = []
        # lists, for append() is atomic and two threads use them
        self.entered, self.finished, self.reported, self.lost, self.strange = [], [], [], [], []
        self.cancelled = Counter()
        self.forms = self.forms_of(self.once.using(on_busy=0.3))

    def forms_of(self, patient):
        @self.once(key="key")
        async def decorated(key: str) -> str:
            return await self.body(key)

        async def by_claim(key):
            async with patient.claim(key) as claim:
                await claim.complete_async(await self.body(key))
            return answer(key)

        async def in_time(key):
            async with asyncio.timeout(self.rng.random() * 0.02):
                return await decorated(key)

        self.key_of = decorated.key_of
        return [decorated, by_claim, in_time]

    async def body(self, key):
        self.entered.append(current().record.owner)
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.01)))
        if self.rng.random() < 0.1:
            raise Failure(key)
        self.finished.append(key)
        return answer(key)

    def pick(self):
        """A new key, or one of the last, so that duplicates meet in every state."""
        if self.rng.random() < 0.3 or not self.keys:
            self.keys.append(f"k{len(self.keys)}-{self.rng.random()}")
        return self.rng.choice(self.keys[-25:])

    async def work(self, until):
        while time.monotonic() < until or (self.cancelled.total() <= ENOUGH and time.monotonic() < until + PATIENCE):
            key = self.pick()
            task = asyncio.create_task(self.rng.choice(self.forms)(key))
            cancelled = False
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                await asyncio.sleep(self.rng.choice((0, self.rng.random() * 0.003, self.rng.random() * 0.05)))
                cancelled = task.cancel() or cancelled
            await asyncio.wait({task}, timeout=PATIENCE)
            self.judge(key, task, cancelled)

    def judge(self, key, task, cancelled):
        if not task.done():
            self.strange.append((key, "hangs"))
            task.cancel()
        elif task.cancelled():
            self.cancelled[key] += 1
            if not cancelled:
                self.strange.append((key, "cancelled by nobody"))
        else:
            error = task.exception()
            if cancelled:
                self.strange.append((key, "swallowed a cancellation", error))
            if isinstance(error, LeaseLost):  # this machine stood still for longer than a lease
                self.lost.append(key)
            elif error is None:
                self.reported.append(key)
                if task.result() != answer(key):
                    self.strange.append((key, task.result()))
            elif not isinstance(error, Busy | Completed | Failure | TimeoutError):
                self.strange.append((key, error))

    async def rage(self, seconds):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: self.strange.append(context))
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.work(until) for _ in range(WORKERS)))
        gc.collect()  # a task whose exception nobody took says so when it is collected
        await asyncio.sleep(0)

    def record(self, key):
        return drive(self.once.store.load(self.key_of(key)), self.once.store).record

    def check(self):
        """Check the ledger at once after the storm, and that every key can then be finished within a lease."""
        assert self.strange == []
        assert self.cancelled.total() > ENOUGH, "a storm that cancels nothing tests nothing"
        runs, lost = Counter(self.finished), Counter(self.lost)
        assert {key: n for key, n in runs.items() if n - lost[key] > 1} == {}, "ran again after it was recorded"
        records = {key: self.record(key) for key in self.keys}
        done = {key for key, record in records.items() if record is not None and record.status == COMPLETED}
        assert set(self.reported) <= done
        assert set(self.finished) - set(self.lost) <= done, "finished, but not recorded"
        held = {key: r for key, r in records.items() if r is not None and r.status == IN_PROGRESS}
        assert [key for key, r in held.items() if r.owner not in self.entered] == [], (
            "claimed, but its handler never ran"
        )

        async def finish():
            # A key that stayed claimed for good would be busy in the end.
            other = Once(self.once.store.url, name="storm", lease=LEASE, on_busy=LEASE + PATIENCE)

            async def again(key: str) -> str:
                if key in done:
                    self.strange.append((key, "completed, and ran again"))
                return answer(key)

            found = await asyncio.gather(*(other.run_async(key, again, key) for key in self.keys))
            other.close()
            return found

        assert asyncio.run(finish()) == [answer(key) for key in self.keys]
        assert self.strange == []
        self.once.close()


def answer(key):
    return f"done {key}"


def test_a_storm_of_cancellations_in_loops_of_two_threads_leaves_a_sound_ledger(tmp_path):
    storm = Storm(tmp_path / "ledger.db", seed=2)
    with ThreadPoolExecutor(2) as pool:
        raging = [pool.submit(lambda: asyncio.run(storm.rage(1.5))) for _ in range(2)]
    for one in raging:
        one.result(timeout=2 * PATIENCE)
    storm.check()


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
