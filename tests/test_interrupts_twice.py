"""Two interrupts of one call, at every two points of its settling that lie close together: the outcome is recorded all the same."""

import asyncio
import warnings

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from torture.points import Points, is_callback
from torture.rules import IN_BLOCK
from torture.strikes import ASYNCIO

GAP = 14  # points between the two, at most: as many as lie between any interrupt and the next try


class Struck(Exception):
    """A time limit that is an Exception."""


class Sweep:
    """Delivers keys, each struck at two other points of the settling, until there is no such point."""

    def __init__(self, form):
        self.once = Once("memory:", name="n")
        self.form = form
        self.struck = []
        self.points = Points(self.strike)
        self.lost = []

    def strike(self, kind, frame):
        outermost = frame
        while outermost.f_back is not None and not outermost.f_back.f_code.co_filename.startswith(ASYNCIO):
            outermost = outermost.f_back
        if is_callback(outermost):
            return  # the event loop logs what its callbacks raise
        self.struck.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        raise Struck(kind)

    def run(self):
        first = 1
        while all(self.pair(first, gap) for gap in range(1, GAP)):
            first += 1
        assert first > 10, "a sweep that strikes nothing tests nothing"
        return self.lost

    def pair(self, first, gap):
        key = f"{first}-{gap}"
        self.struck = []
        self.points.arm([("settle", first, "first"), ("settle", first + gap, "second")])
        raised = told = None
        try:
            told = FORMS[self.form](self.once, key, self.end)
        except Struck as error:
            raised = error
        finally:
            self.points.disarm()
        done = self.points.counts.get("settle", 0) < first
        self.look(key, raised, told)
        return not done

    def end(self):
        """Say that the handler returns now."""
        self.points.phase = "settle"

    def look(self, key, raised, told):
        by_block = self.form.startswith("claim") and any(one.rpartition(" ")[2] in IN_BLOCK for one in self.struck)
        record = next((r for r in self.once.store.records.values() if r.key.endswith(key)), None)
        if (record is None or record.status != COMPLETED) and not by_block:
            self.lost.append(f"{key} {self.struck}: {record and record.status}, {raised!r}")
        elif self.struck and raised is None and "batch" not in self.form:
            self.lost.append(f"{key} {self.struck}: swallowed, {told!r}")


def run(once, key, end):
    return once.run(key, end)


def run_async(once, key, end):
    async def handler():
        end()

    return asyncio.run(once.run_async(key, handler))


def claim(once, key, end):
    with once.claim(key) as held:
        end()
        held.complete("done")


def claim_async(once, key, end):
    async def block():
        async with once.claim(key) as held:
            end()
            await held.complete_async("done")

    asyncio.run(block())


def batch(once, key, end):
    def handler(record):
        end()

    return once.batch(handler, key="record", name="b").run([key])


def batch_async(once, key, end):
    async def handler(record):
        end()

    return asyncio.run(once.batch(handler, key="record", name="b").run_async([key]))


def checkpoint(once, key, end):
    with once.checkpoint(lambda _: end(), key="@", name="c") as sink:
        sink.add(key)


def checkpoint_async(once, key, end):
    async def flush(_):
        end()

    async def main():
        async with once.checkpoint(flush, key="@", name="c") as sink:
            await sink.add(key)

    asyncio.run(main())


FORMS = {
    one.__name__: one for one in (run, run_async, claim, claim_async, batch, batch_async, checkpoint, checkpoint_async)
}


@pytest.mark.parametrize("form", FORMS)
def test_two_interrupts_anywhere_in_the_settling_lose_no_outcome(form):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coroutines that an interrupt has kept from being awaited
        lost = Sweep(form).run()
    assert not lost, "\n".join([f"{len(lost)} lost", *lost[:12]])
