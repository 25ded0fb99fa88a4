"""A process of a history: 64 tasks and 16 threads share two lanes, and deliver keys that other processes deliver as well."""

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

from histories.recording import PLANTS, RecordedStore, instant
from onceward import Busy, Once, OncewardError, current
from onceward.claim.claim import Claim
from onceward.stores import open_store
from servers.wrong_clocks import mend_sleep
from torture.facts import Journal
from torture.plan import Plan
from torture.wire import lose_replies

TASKS, THREADS = 64, 16
KEYS = 6  # of each part of a run
PART = 0.4  # seconds in which all processes deliver the same new keys
BEFORE = 20  # parts whose keys are delivered again
IN_PROCESS = {"memory", "sqlite"}  # stores whose replies are lost in the process


class Failed(Exception):
    """What a handler raises at times."""


class Process:
    def __init__(self, crowd: SimpleNamespace, number: int) -> None:
        self.crowd, self.number = crowd, number
        journal = Journal(Path(crowd.folder) / f"history-{number}")
        store = open_store(crowd.url)
        if crowd.plant is not None:
            PLANTS[crowd.plant](store)
        self.store = RecordedStore(store, journal)
        self.once = Once(self.store, name="h", lease=crowd.lease)
        self.ends = instant() + int(crowd.seconds * 1e9)
        if crowd.store in IN_PROCESS and crowd.loss:
            faults = Journal(Path(crowd.folder) / "faults")
            lose_replies(store, Plan(crowd.seed, crowd.store, "run", [], loss=crowd.loss), faults, number)

    def run(self) -> None:
        threads = [threading.Thread(target=self._thread, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        asyncio.run(self._tasks())
        for thread in threads:
            thread.join()

    def _chance(self, number: int) -> random.Random:
        return random.Random(f"{self.crowd.seed} {self.number} {number}")

    def _key(self, chance: random.Random) -> str:
        part = int((instant() - self.crowd.began) / 1e9 / PART)
        if chance.random() < 0.4:
            part = max(0, part - chance.randrange(BEFORE))
        return f"{part}-{chance.randrange(KEYS)}"

    def _thread(self, number: int) -> None:
        chance = self._chance(1000 + number)
        while instant() < self.ends:
            key, began = self._key(chance), instant()
            with contextlib.suppress(OncewardError, Failed):
                self._told(key, began, self.once.run(key, self._handle, key, chance))
            time.sleep(chance.random() * 0.02)

    async def _tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(TASKS):
                group.create_task(self._task(number))

    async def _task(self, number: int) -> None:
        chance = self._chance(number)
        while instant() < self.ends:
            if number % 16 == 15:
                await self._batch(chance)
            else:
                await self._deliver(self._key(chance), chance)
            await asyncio.sleep(chance.random() * 0.1)

    async def _deliver(self, key: str, chance: random.Random) -> None:
        began = instant()
        try:
            value = await self.once.run_async(key, self._handle_async, key, chance)
        except Busy as busy:
            await asyncio.sleep(min(busy.retry_after, 0.1))
        except (OncewardError, Failed):
            pass
        else:
            self._told(key, began, value)

    async def _batch(self, chance: random.Random) -> None:
        keys = sorted({self._key(chance) for _ in range(4)})
        began = instant()

        async def handle(key: str) -> str:
            return await self._handle_async(key, chance)

        batch = self.once.batch(handle, key="key", concurrency=4)
        with contextlib.suppress(OncewardError):
            for outcome in await batch.run_async(keys):
                if outcome.ok and outcome.error is None:
                    self._told(outcome.record, began, outcome.value)

    def _told(self, key: str, began: int, value: object) -> None:
        self.store.whole("told", f"h:{key}", began, value=value)

    def _nap(self, chance: random.Random) -> float:
        return self.crowd.lease * chance.choice((0.0, 0.0, 0.01, 0.05, 0.3, 1.3))

    def _handle(self, key: str, chance: random.Random) -> str:
        claim = current()
        time.sleep(self._nap(chance))
        return self._effect(key, claim, chance)

    async def _handle_async(self, key: str, chance: random.Random) -> str:
        claim = current()
        await asyncio.sleep(self._nap(chance))
        return self._effect(key, claim, chance)

    def _effect(self, key: str, claim: Claim | None, chance: random.Random) -> str:
        if chance.random() < 0.1:
            raise Failed
        began = instant()
        if claim is not None and not claim.lost:
            self.store.whole("believed", f"h:{key}", began, fence=claim.fence)
        if claim is not None:
            self.store.whole("effect", f"h:{key}", began, fence=claim.fence)
        return f"{os.getpid()}-{began}"


def main(text: str, number: str) -> None:
    if "FAKETIME" in os.environ:
        mend_sleep()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    warnings.simplefilter("ignore")
    logging.disable()
    Process(SimpleNamespace(**json.loads(text)), int(number)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
