"""The line for a connection is the batch: every hazard of it, on lanes that do what a test tells them."""

import asyncio
import gc
import os
import threading
import weakref
from types import SimpleNamespace

import pytest

from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.lane import ServerLane
from onceward.stores.lanes.line import MOST_BYTES
from onceward.stores.sql.refusals import Broken, SqlRefusal
from waiting import until


class Write:
    """A request for one key."""

    def __init__(self, key, kind="insert", size=10):
        self.key, self.kind, self.rank, self.size = key, kind, int(kind != "swap"), size

    def merged(self, requests):
        return Many([one.key for one in requests], self.kind)

    def reply(self, rows):
        return rows[self.key]


class Many:
    """A request for many keys."""

    def __init__(self, keys, kind):
        self.keys, self.kind = keys, kind

    def reply(self, rows):
        return SimpleNamespace(replies=rows)


def asked(request):
    return request.kind, (request.keys if isinstance(request, Many) else [request.key]), isinstance(request, Many)


class Server:
    """What all lanes of a test lead to.

    Attributes:
        seen: the keys of each request, in their order.
        poison: the errors of keys.
        held: keys whose request waits until ``go`` is set.
    """

    def __init__(self):
        self.seen, self.poison, self.held = [], {}, set()
        self.go, self.lanes, self.closed = threading.Event(), [], 0

    def answer(self, keys, many):
        self.seen.append(keys)
        for key in keys:
            if (error := self.poison.get(key)) is not None and not (many and isinstance(error, KeyboardInterrupt)):
                raise error
        return {key: f"{key} done" for key in keys}

    def lane(self):
        self.lanes.append(BlockingLane(self))
        return self.lanes[-1]

    def lane_async(self):
        self.lanes.append(AwaitedLane(self))
        return self.lanes[-1]

    def open(self, most=1, timeout=30.0, left=frozenset()):
        return LedgerLanes(self.lane, self.lane_async, most, timeout, left)


class BlockingLane(ServerLane):
    is_alive = True

    def __init__(self, server):
        self.server = server

    def fetch(self, kind, keys, many):
        if not self.server.held.isdisjoint(keys):
            assert self.server.go.wait(60)
        return self.server.answer(keys, many)

    def close(self, *, friendly=False):
        self.server.closed += 1


class AwaitedLane(BlockingLane):
    async def fetch(self, kind, keys, many):
        while not (self.server.held.isdisjoint(keys) or self.server.go.is_set()):
            await asyncio.sleep(0.001)
        return self.server.answer(keys, many)


@pytest.fixture
def server():
    server = Server()
    server.held.add("first")
    return server


def of_threads(server, writes, lanes):
    """Do the writes in a thread each, while the only lane is in use, and return their outcomes."""
    outcomes = {}

    def work(number, write):
        try:
            outcomes[number] = lanes.run(write, asked)
        except BaseException as error:
            outcomes[number] = error

    def start(number, write):
        thread = threading.Thread(target=work, args=(number, write))
        thread.start()
        return thread

    threads = [start(-1, Write("first"))]
    until(lambda: lanes._threads._all and not lanes._threads._idle)
    for number, write in enumerate(writes):
        threads.append(start(number, write))
        until(lambda before=number: sum(map(len, lanes._threads._line._ranks)) > before)
    server.go.set()
    for thread in threads:
        thread.join()
    assert outcomes.pop(-1) == "first done"
    return [outcomes[number] for number in range(len(writes))]


def of_tasks(server, writes, lanes):
    """The same, in a task each."""

    async def main():
        tasks = [asyncio.ensure_future(lanes.run_async(write, asked)) for write in (Write("first"), *writes)]
        await asyncio.sleep(0.01)
        server.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *rest = asyncio.run(main())
    assert first == "first done"
    return rest


both = pytest.mark.parametrize("run", [of_threads, of_tasks])


@both
def test_what_waits_leaves_together(run, server):
    assert run(server, [Write("a"), Write("b"), Write("c")], server.open()) == ["a done", "b done", "c done"]
    assert server.seen == [["first"], ["a", "b", "c"]]


@both
def test_a_batch_is_no_longer_than_the_servers_take(run, server):
    half = MOST_BYTES // 2
    run(server, [Write("a", size=half), Write("b", size=half + 1), Write("c"), Write("d", size=half)], server.open())
    assert server.seen == [["first"], ["a", "c"], ["b"], ["d"]]


@both
def test_a_write_does_not_pass_an_earlier_one_of_its_key(run, server):
    large = Write("b", size=MOST_BYTES)
    run(server, [Write("a", size=20), large, Write("b"), Write("c")], server.open())
    assert server.seen == [["first"], ["a", "c"], ["b"], ["b"]]


def test_a_lone_caller_goes_at_once_and_alone(server):
    lanes = server.open()
    assert lanes.run(Write("a"), asked) == "a done"
    assert asyncio.run(lanes.run_async(Write("b"), asked)) == "b done"
    assert server.seen == [["a"], ["b"]]


@both
def test_one_key_twice_in_the_line_leaves_twice(run, server):
    run(server, [Write("a"), Write("b"), Write("a"), Write("a")], server.open())
    assert server.seen == [["first"], ["a", "b"], ["a"], ["a"]]


@both
@pytest.mark.parametrize("error", [SqlRefusal("22021", "wrong bytes"), ValueError("NUL")])
def test_a_poisonous_write_fails_alone(error, run, server):
    server.poison["b"] = error
    assert run(server, [Write("a"), Write("b"), Write("c")], server.open()) == ["a done", error, "c done"]


@both
def test_ends_leave_before_claims(run, server):
    run(server, [Write("a"), Write("b"), Write("c", "swap"), Write("d", "swap")], server.open())
    assert server.seen == [["first"], ["c", "d"], ["a", "b"]]


@both
def test_a_lost_connection_puts_its_batch_in_doubt_and_no_other(run, server):
    server.poison["b"] = Broken("reset")
    outcomes = run(server, [Write("a"), Write("b"), Write("c", "swap")], server.open())
    assert [type(one) for one in outcomes] == [Broken, Broken, str]
    assert server.closed == 1


@both
def test_a_server_that_says_that_it_should_be_left_is_left(run, server):
    server.poison["a"] = SqlRefusal("25006", "read-only")
    outcomes = run(server, [Write("a"), Write("b")], server.open(left=frozenset({"25006"})))
    assert [one.state for one in outcomes] == ["25006", "25006"]
    assert server.closed == 1


def test_an_interrupted_carrier_leaves_nobody_waiting(server):
    server.poison["a"] = KeyboardInterrupt()
    server.answer = lambda keys, many: Server.answer(server, keys, many=False)
    outcomes = of_threads(server, [Write("a"), Write("b"), Write("c", "swap")], server.open())
    assert [type(one) for one in outcomes] == [KeyboardInterrupt, Broken, str]


def test_a_waiter_that_is_cancelled_before_its_write_left_has_written_nothing(server):
    async def main():
        lanes = server.open()
        first, gone, other = (asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "a", "b"))
        await asyncio.sleep(0.01)
        gone.cancel()
        server.go.set()
        return await asyncio.gather(first, gone, other, return_exceptions=True)

    _, gone, other = asyncio.run(main())
    assert (type(gone), other) == (asyncio.CancelledError, "b done")
    assert server.seen == [["first"], ["b"]]


def test_a_cancelled_waiter_does_not_stop_the_batch_that_carries_its_write(server):
    async def main():
        lanes = server.open()
        first, gone, other = (asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "a", "b"))
        await asyncio.sleep(0.01)
        server.held = {"a"}
        while ["first"] not in server.seen:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        gone.cancel()
        server.go.set()
        return await asyncio.gather(first, gone, other, return_exceptions=True)

    _, gone, other = asyncio.run(main())
    assert (type(gone), other) == (asyncio.CancelledError, "b done")
    assert server.seen == [["first"], ["a", "b"]]


def test_who_waits_too_long_is_told_and_its_neighbours_go_on(server):
    lanes = server.open(timeout=0.2)
    outcomes = []

    def work(key):
        try:
            outcomes.append(lanes.run(Write(key), asked))
        except Broken as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=work, args=(key,)) for key in ("first", "late")]
    threads[0].start()
    until(lambda: lanes._threads._all and not lanes._threads._idle)
    threads[1].start()
    until(lambda: outcomes)
    server.go.set()
    for thread in threads:
        thread.join()
    assert "in use for 0.2 s" in outcomes[0]
    assert (outcomes[1], server.seen) == ("first done", [["first"]])


def test_two_loops_have_lanes_of_their_own_and_take_them_with_them(server):
    lanes, seen = server.open(), []

    def work(key):
        asyncio.run(lanes.run_async(Write(key), asked))
        seen.append(key)

    threads = [threading.Thread(target=work, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.lanes) == 2
    refs = list(map(weakref.ref, server.lanes))
    server.lanes.clear()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_forked_child_makes_lanes_of_its_own_and_closes_none(server):
    lanes = server.open()
    lanes.run(Write("a"), asked)
    child = os.fork()
    if not child:
        try:
            lanes.run(Write("b"), asked)
            os._exit(0 if (len(server.lanes), server.closed) == (2, 0) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lanes.run(Write("c"), asked)
    assert len(server.lanes) == 1


def test_writes_that_wait_at_a_close_are_done_and_the_lane_is_closed_then(server):
    async def main():
        lanes = server.open()
        tasks = [asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "a", "b")]
        await asyncio.sleep(0.01)
        lanes.close()
        server.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == ["first done", "a done", "b done"]
    assert server.closed == 1


def test_a_lane_that_an_interrupt_has_lost_is_made_anew(server):
    lanes = server.open()
    lanes._threads._free()  # taken, and forgotten
    server.lanes.clear()
    gc.collect()
    assert lanes.run(Write("a"), asked) == "a done"
