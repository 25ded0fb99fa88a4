"""Random handlers with steps side by side, some of which fail, on a ledger that loses requests and replies.

While an attempt runs, nothing that an earlier one has begun acts; a recorded step is not made again, and has one result. Each
handler is called again until it returns, or until its key stays claimed because work of a cancelled step may go on.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Busy, Claim, Once, OncewardError, StoreError
from onceward.core.drivers import Sleep
from onceward.stores.memory import MemoryStore
from tables import each

NAMES = [f"step-{number}" for number in range(8)]
ATTEMPTS = 200


class Declined(Exception):
    pass


class Lossy(MemoryStore):
    """A store that is slow, and loses requests and replies."""

    def __init__(self, chance):
        super().__init__()
        self._chance = chance

    def swap(self, write, seen):
        what = self._chance.random()
        if what < 0.2:
            yield Sleep(self._chance.random() / 100)
        elif what < 0.25:
            raise StoreError("a lost request", transient=True)
        reply = yield from super().swap(write, seen)
        if 0.25 <= what < 0.4:
            yield Sleep(self._chance.random() / 100)
        elif 0.4 <= what < 0.45:
            raise StoreError("a lost reply", transient=True)
        return reply


class Handler:
    """A handler, and what is wrong with how it runs."""

    def __init__(self, seed, shape):
        self.chance, self.shape = random.Random(seed), shape
        self.once = Once(Lossy(self.chance))
        self.wrong, self.made, self.told = [], Counter(), {}
        self._attempt, self._acting, self._lock = 0, Counter(), threading.Lock()
        self._place = self.once(key="order", name="place")(self._called if shape == "threads" else self._awaited)

    def run(self):
        """Call it until it returns, or its key stays claimed; return what is wrong."""
        for _ in range(ATTEMPTS):
            try:
                asyncio.run(self._place(1)) if self.shape != "threads" else self._place(1)
            except Busy:
                break
            except (Declined, OncewardError, ExceptionGroup):
                continue
            break
        else:
            self.wrong.append("it never ends")
        self.wrong += [f"{name} was made {times} times" for name, times in self.made.items() if times > 1]
        return self.wrong

    def _begin(self, claim):
        with self._lock:
            if any(self._acting.values()):
                self.wrong.append(f"attempt {claim.attempt} began while {+self._acting} acted")
            self._attempt = claim.attempt

    def _acts(self, name, attempt):
        with self._lock:
            if attempt != self._attempt:
                self.wrong.append(f"{name} of attempt {attempt} acts in attempt {self._attempt}")
            self._acting[name] += 1
            return self.chance.random()

    def _made(self, name, attempt, declined):
        with self._lock:
            self._acting[name] -= 1
            if declined:
                raise Declined(name)
            self.made[name] += 1
            return f"{name} of attempt {attempt}" + "." * self.chance.choice((0, 0, 0, 4000))

    def _effect(self, name, attempt):
        drawn = self._acts(name, attempt)
        time.sleep(drawn / 50)
        return self._made(name, attempt, drawn < 0.2)

    async def _effect_async(self, name, attempt):
        if self.chance.random() < 0.5:
            return await asyncio.to_thread(self._effect, name, attempt)
        drawn = self._acts(name, attempt)
        try:
            await asyncio.sleep(drawn / 50)
        except asyncio.CancelledError:
            self._acting[name] -= 1
            raise
        return self._made(name, attempt, drawn < 0.2)

    def _check(self, name, result):
        if self.told.setdefault(name, result) != result:
            self.wrong.append(f"{name} has another result than before")

    def _called(self, order, claim: Claim):
        self._begin(claim)
        step = lambda name: self._check(name, claim.step(name, self._effect, name, claim.attempt))
        pool = ThreadPoolExecutor(4)  # what waits for a thread begins after the handler has failed
        running = [pool.submit(step, name) for name in NAMES]
        pool.shutdown(wait=False)
        for one in running:
            one.result()

    async def _awaited(self, order, claim: Claim):
        self._begin(claim)

        async def step(name):
            if self.shape == "both forms" and self.chance.random() < 0.5:
                self._check(name, await asyncio.to_thread(claim.step, name, self._effect, name, claim.attempt))
            else:
                self._check(name, await claim.step_async(name, self._effect_async, name, claim.attempt))

        async with asyncio.TaskGroup() as group:
            for name in NAMES:
                group.create_task(step(name))


@pytest.mark.slow
@each("shape", ["threads", "tasks", "both forms"])
def test_nothing_of_an_earlier_attempt_acts_and_no_recorded_step_is_made_again(shape):
    found = {seed: wrong for seed in range(12) if (wrong := Handler(seed, shape).run())}
    assert not found
