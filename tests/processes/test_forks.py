"""A claim belongs to the process that made it: a forked child leaves it alone; and signal handlers that make guarded calls, or fork."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from fixtures import closing_fixture
from onceward import ForkedClaim, Once, current
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS
from places import SOURCES

PATIENCE = 60.0  # seconds that a child may take on a slow machine


def ended(child, reader, writer):
    """Wait for the child's end, and return what it has written."""
    os.close(writer)
    end = time.monotonic() + PATIENCE
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.005)
    with open(reader, "rb") as pipe:
        return pipe.read().decode()


def told(act):
    """Call ``act`` and return what became of it, as text."""
    try:
        return repr(act())
    except BaseException as error:
        return type(error).__name__


def in_child(act):
    """Fork, call ``act`` in the child, and return what became of it; the child ends there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, told(act).encode())
        os._exit(0)
    return ended(child, reader, writer)


class Forks:
    """A place in which a handler forks, and both processes come back from it."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.child = None

    def fork(self):
        self.child = os.fork()
        return self.child == 0

    def slow(self):
        """Fork: the child is back at once, the parent when the child has ended."""
        if not self.fork():
            time.sleep(0.3)

    def leave(self, said):
        os.write(self.writer, said.encode())
        os._exit(0)

    def outcome(self, act):
        """Call ``act``, which forks; end the child with what it comes to there, and return (the parent's, the child's)."""
        mine = told(act)
        if self.child == 0:
            self.leave(mine)
        return mine, ended(self.child, self.reader, self.writer)


once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db", name="n", lease=30))


def record(once, key="k"):
    return drive(once.store.load(f"n:{key}"), once.store).record


@pytest.mark.parametrize("form", ["run", "run_async", "claim"])
def test_forked_child_that_returns_from_handler_leaves_parents_key_alone(once, form):
    forks, seen = Forks(), []

    def handle():
        forks.slow()
        seen.append(record(once).status)
        return os.getpid()

    async def main():
        try:
            return await once.run_async("k", handle)
        except ForkedClaim:
            forks.leave("ForkedClaim")  # before it ends the event loop, of which it shares the descriptors

    def call():
        if form == "run":
            return once.run("k", handle)
        if form == "run_async":
            return asyncio.run(main())
        with once.claim("k") as claim:
            claim.complete(handle())
        return os.getpid()

    assert forks.outcome(call) == (repr(os.getpid()), "ForkedClaim")
    assert seen == [IN_PROGRESS], "ended by the child"
    assert (record(once).status, record(once).result) == (COMPLETED, str(os.getpid()))


@pytest.mark.parametrize("form", ["run", "claim", "batch", "checkpoint"])
def test_exception_on_its_way_in_child_is_not_masked_and_releases_nothing(once, form):
    forks, seen = Forks(), []

    def handle(item="k"):
        if forks.fork():
            raise ZeroDivisionError
        time.sleep(0.3)
        seen.append(record(once).status)

    def call():
        if form == "run":
            once.run("k", handle)
        elif form == "batch":
            once.batch(handle, key="item", name="n").run(["k"])
        elif form == "checkpoint":
            with once.checkpoint(print, key=str, name="n") as sink:
                sink.add("k")
                handle()
        else:
            with once.claim("k"):
                handle()

    assert forks.outcome(call) == ("None", "ZeroDivisionError")
    assert seen == [IN_PROGRESS]
    assert record(once).status == COMPLETED


@pytest.mark.parametrize("act", ["complete", "release", "park", "extend", "transaction"])
def test_nothing_can_be_done_with_a_claim_in_a_forked_child(once, act, tmp_path):
    claim = once.acquire("k")

    def enter():
        with claim.transaction(sqlite3.connect(tmp_path / "ledger.db")):
            pass

    assert in_child(enter if act == "transaction" else getattr(claim, act)) == "ForkedClaim"
    assert record(once) == claim.record
    claim.complete()
    assert record(once).status == COMPLETED


def test_a_batch_in_a_forked_child_records_nothing_and_begins_nothing(once):
    forks, began, caller = Forks(), [], threading.get_ident()

    def handle(order):
        while threading.get_ident() != caller and caller not in began:
            time.sleep(0.001)  # the caller's thread forks, beside others
        began.append(threading.get_ident())
        if threading.get_ident() == caller and forks.child is None:
            forks.slow()

    def call():
        batch = once.batch(handle, key="order", name="n", concurrency=3)
        return [outcome.status for outcome in batch.run(["1", "2", "3"])]

    assert forks.outcome(call) == (repr(["done"] * 3), "ForkedClaim")
    assert len(began) == 3
    assert [held.status for held, _ in once.ledger.records()] == [COMPLETED] * 3


@pytest.mark.parametrize("where", ["block", "flush"])
def test_a_forked_checkpoint_flushes_once(once, where, tmp_path):
    forks, written = Forks(), tmp_path / "written"

    def flush(items):
        if where == "flush":
            forks.slow()
        with written.open("a") as file:
            file.write(f"{os.getpid()} {items}\n")

    def block():
        with once.checkpoint(flush, key=str, name="n") as sink:
            sink.add("k")
            if where == "block":
                forks.slow()

    assert forks.outcome(block) == ("None", "ForkedClaim")
    lines = written.read_text().splitlines()
    assert f"{os.getpid()} ['k']" in lines
    assert len(lines) == (1 if where == "block" else 2)  # the flush itself is the user's
    assert record(once).status == COMPLETED


def test_a_child_cannot_add_to_its_parents_checkpoint(once):
    with once.checkpoint(lambda items: None, key=str, name="n") as sink:
        sink.add("k")
        assert in_child(lambda: sink.add("other")) == "ForkedClaim"
        assert in_child(sink.flush) == "ForkedClaim"
    assert record(once, "other") is None


def test_a_child_may_claim_keys_of_its_own(once):
    def handle():
        assert current().key("x")
        assert in_child(current) == "ForkedClaim", "a pool that one handler starts may serve another"
        return in_child(lambda: once.run("other", lambda: "mine"))

    assert once.run("k", handle) == "'mine'"
    assert record(once, "other").status == COMPLETED


LOOP = """
import collections, faulthandler, os, random, signal, sys, threading, time
from onceward import Once, StoreError
url, how, does, seconds = *sys.argv[1:4], float(sys.argv[4])
faulthandler.dump_traceback_later(100, exit=True)  # whoever waits for his own lock
once = Once(url, lease=30)
ran, said, signals, children = collections.Counter(), set(), 0, []
dice = random.Random(5)

def handle(key):
    ran[key] += 1
    return key

def call(number):
    for key in (f"signal {number}", f"signal {number - 1}"):
        try:
            assert once.run(key, handle, key) == key
        except StoreError as error:
            assert not error.transient and "signal handler" in str(error), error

def fork(number):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if once.run(f"child {number}", handle, 1) == 1 else 2
        except StoreError as error:
            code = 0 if "signal handler" in str(error) else 3
        finally:
            os._exit(code)
    children.append(child)

def close(number):
    try:
        once.close()
    except StoreError as error:
        assert "signal handler" in str(error), error

def reap(flags):
    for child in list(children):
        pid, status = os.waitpid(child, flags)
        if pid:
            children.remove(child)
            if status:
                said.add(f"child: {status}")

def on_signal(*_):
    global signals
    signals += 1
    {"call": call, "fork": fork, "close": close}[does](signals)
    reap(os.WNOHANG)
    again()

def going():  # on a busy machine for longer, until there were signals enough
    now = time.monotonic()
    return now < end or now < end + 60 and (signals <= 20 or number <= 8)

def again():
    if going():
        signal.setitimer(signal.ITIMER_REAL, 50e-6 + dice.random() * (8e-4 if does == "call" else 2e-2))

def one(number):
    try:
        assert once.run(number, handle, number) == number
    except StoreError as error:  # interrupted at each try of two seconds: nothing has run, so it may be called again
        if not error.transient or does == "call":
            raise
        assert not ran[number] and once.run(number, handle, number) == number

def many(number):
    keys = [f"{number} {n}" for n in range(8)]
    results = once.batch(handle, key=lambda key: key, name="many").run(keys)
    assert sorted(ran[key] for key in keys) == [1] * 8, results

def tried(act, number):
    try:
        act(number)
    except Exception as error:
        said.add(repr(error))

def threads(number):
    started = [threading.Thread(target=tried, args=(one, number + n)) for n in (1, 2)]
    for thread in started: thread.start()
    tried(one, number)
    for thread in started: thread.join()

once.run("warm up", handle, "warm up")
signal.signal(signal.SIGALRM, on_signal)
end, number = time.monotonic() + seconds, 0
again()
while going():
    number += 4
    if how == "threads":
        threads(number)
    else:
        tried({"single": one, "batch": many}[how], number)
signal.setitimer(signal.ITIMER_REAL, 0)
reap(0)
twice = [key for key, times in ran.items() if times > 1]
left = [(record.key, record.status) for record, _ in once.ledger.records() if record.status != "COMPLETED" and "child" not in record.key]
print(left[:5], signals, file=sys.stderr)
print(twice, sorted(said), not left, signals > 20, number > 8)
"""


@pytest.mark.sampled("call-batch", "fork-threads", "close-threads")
@pytest.mark.parametrize("how", ["single", "batch", "threads"])
@pytest.mark.parametrize("does", ["call", "fork", "close"])
def test_a_signal_handler_that_calls_forks_or_closes_never_hangs_and_runs_nothing_twice(tmp_path, does, how):
    command = [sys.executable, "-c", LOOP, f"sqlite:///{tmp_path}/ledger.db?synchronous=NORMAL", how, does, "1.5"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.stdout == "[] [] True True True\n", done.stderr
