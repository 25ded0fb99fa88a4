"""Time limits, cancellations and interrupts, raised from outside at any moment: what the handler has done is recorded all the same."""

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from faults.injected import Faults, fail_after, fail_before, settling, when
from onceward import Once, current
from onceward.claim.lease import CURRENT
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from places import SOURCES, SUPPORT
from tables import each
from torture.points import HOME, Points, is_callback
from torture.rules import IN_BLOCK
from torture.strikes import ASYNCIO


class SoftTimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException."""


@pytest.fixture(autouse=True)
def outside():
    """A block whose end an interrupt has skipped leaves its claim in the context."""
    yield
    CURRENT.set(None)


def test_a_store_that_breaks_its_contract_still_says_handler_succeeded():
    store = Faults(MemoryStore(), when(settling, fail_before(ValueError)))
    with pytest.raises(ValueError, match="swap") as raised:
        Once(store, name="n").run("k", lambda: "done")
    assert "the handler succeeded" in "".join(raised.value.__notes__)


def test_a_transaction_whose_end_was_interrupted_is_rolled_back_first(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db?timeout=0.2", name="n")
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("CREATE TABLE effects (n)")

    def handle():
        transaction = current().transaction(connection)
        transaction.__enter__()
        connection.execute("INSERT INTO effects VALUES (1)")
        raise SoftTimeLimit  # as its __exit__ begins

    with pytest.raises(SoftTimeLimit) as raised:
        once.run("k", handle)
    assert not getattr(raised.value, "__notes__", ())
    assert not connection.in_transaction
    assert [record.status for record, _ in once.ledger.records()] == [RELEASED]
    once.close()


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


class Struck(Exception):
    """A time limit that is an Exception."""


def test_nothing_is_imported_between_the_end_of_a_handler_and_its_record():
    """A new release may have replaced the files by then, or the process has no descriptor left."""
    code = """
import sys
from onceward import Once, current
from onceward.errors import StoreError
from onceward.stores.memory import MemoryStore

class Away(MemoryStore):
    tries = 0
    def exchange(self, request):
        self.tries += type(sys.meta_path[0]) is NoFiles
        if self.tries == 1:
            raise StoreError("away", transient=True)
        return super().exchange(request)

class NoFiles:
    def find_spec(self, name, *_):
        raise ImportError(f"imported: {name}")

def done(raises):
    current().send("http://127.0.0.1:9/", "x")
    sys.meta_path.insert(0, NoFiles())
    if raises:
        raise ValueError("declined")

for raises, options in [(0, {}), (1, {}), (0, {"seal": (bytes, bytes)}), (1, {"seal": (bytes, bytes)}), (1, {"on_error": "park"})]:
    store = Away()
    try:
        Once(store, name="n", **options).run("k", done, raises)
    except ValueError as error:
        assert not hasattr(error, "__notes__"), error.__notes__
    sys.meta_path.pop(0)
    print(*(record.status for record in store.records.values()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [COMPLETED, RELEASED, COMPLETED, RELEASED, "PARKED"], done.stderr


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
        self.struck.append(f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno} {frame.f_code.co_name}")
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
        elif self.struck and raised is None and "batch" not in self.form and "results/" not in self.struck[0]:
            self.lost.append(f"{key} {self.struck}: swallowed, {told!r}")


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


FORMS = {"run": Once.run, "run_async": run_async, "claim": claim, "batch": batch}


def swept(form):
    """Sweep in a process of its own, and return what was lost: CPython 3.11 loses count of its trace functions in specialized code."""
    code = f"import sys, {Path(__file__).stem} as own; sys.unraisablehook = print; print(*own.Sweep({form!r}).run(), 'end')"
    folders = [str(Path(__file__).parent), str(SUPPORT), str(SOURCES)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.sampled("run_async", "batch")
@pytest.mark.parametrize("form", FORMS)
def test_an_interrupt_anywhere_in_the_settling_loses_no_outcome(form):
    assert swept(form) == "end"
