"""A claim belongs to the process that made it: a forked child neither ends, renews nor flushes what its parent holds."""

import asyncio
import os
import sqlite3
import threading
import time

import pytest

from onceward import ForkedClaim, Once, current
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS

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


@pytest.fixture
def once(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n", lease=30)
    yield once
    once.close()


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
        return in_child(lambda: once.run("other", lambda: "mine"))

    assert once.run("k", handle) == "'mine'"
    assert record(once, "other").status == COMPLETED
