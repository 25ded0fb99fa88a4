"""An interrupt of one call, at every point of its settling: the outcome is recorded all the same."""

import asyncio
import gc
import os
import subprocess
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from places import SOURCES, SUPPORT
from torture.points import HOME, Points, is_callback
from torture.rules import IN_BLOCK
from torture.strikes import ASYNCIO


@pytest.fixture(autouse=True)
def dropped(monkeypatch):
    """Python tells of what it drops, and of coroutines that an interrupt has kept from being awaited."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


class Struck(Exception):
    """A time limit that is an Exception."""


class Sweep:
    """Delivers keys, each struck at another point of the settling, until there is no such point."""

    def __init__(self, form):
        self.once = Once("memory:", name="n")
        self.form = form
        self.struck = []
        self.points = Points(self.strike)
        self.lost = []

    def strike(self, kind, frame):
        if not frame.f_code.co_filename.startswith(HOME):
            return  # such as the callback of a weak reference, where Python drops what is raised
        outermost = frame
        while outermost.f_back is not None and not outermost.f_back.f_code.co_filename.startswith(ASYNCIO):
            outermost = outermost.f_back
        if is_callback(outermost):
            return  # the event loop logs what its callbacks raise
        self.struck.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        raise Struck(kind)

    def run(self):
        first = 1
        while self.once_at(first):
            first += 1
        assert first > 10, "a sweep that strikes nothing tests nothing"
        return self.lost

    def once_at(self, first):
        key = f"at-{first}"
        self.struck = []
        self.points.arm([("settle", first, "first")])
        raised = told = None
        try:
            told = copy_context().run(FORMS[self.form], self.once, key, self.end)
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


def batch(once, key, end):
    def handler(record):
        end()

    return once.batch(handler, key="record", name="b").run([key])


FORMS = {one.__name__: one for one in (run, run_async, claim, batch)}


def swept(form):
    """Sweep in a process of its own, and return what was lost.

    CPython 3.11 loses count of its trace functions when exceptions leave them in code that was specialized before: it then
    calls a traceback.
    """
    code = f"import sys, {Path(__file__).stem} as own; sys.unraisablehook = print; print(*own.Sweep({form!r}).run(), 'end')"
    folders = [str(Path(__file__).parent), str(SUPPORT), str(SOURCES)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.sampled("run_async", "batch")
@pytest.mark.parametrize("form", FORMS)
def test_an_interrupt_anywhere_in_the_settling_loses_no_outcome(form):
    assert swept(form) == "end"
