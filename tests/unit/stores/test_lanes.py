"""The line for a connection is the batch: every hazard of it, on lanes that do what a test tells them; and limits on sockets."""

import asyncio
import gc
import os
import socket
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from onceward.errors import StoreError
from onceward.stores.lanes import limits, line, refusals
from onceward.stores.lanes.lane import SocketLane
from stores.scripted_lanes import AwaitedLane, Server, Write, asked, of_tasks, of_threads
from waiting import until


@pytest.fixture
def server():
    server = Server()
    server.held.add("first")
    return server


both = pytest.mark.parametrize("run", [of_threads, of_tasks])
HALF = line.MOST_BYTES // 2


LINES = {  # what waits behind the first, and which leave together
    "what waits leaves together": ([Write("a"), Write("b"), Write("c")], [["a", "b", "c"]]),
    "a batch is no longer than servers take": (
        [Write("a", size=HALF), Write("b", size=HALF + 1), Write("c"), Write("d", size=HALF)],
        [["a", "c"], ["b"], ["d"]],
    ),
    "a write does not pass an earlier one of its key": (
        [Write("a", size=20), Write("b", size=line.MOST_BYTES), Write("b"), Write("c")],
        [["a", "c"], ["b"], ["b"]],
    ),
    "one key twice leaves twice": ([Write("a"), Write("b"), Write("a"), Write("a")], [["a", "b"], ["a"], ["a"]]),
    "ends before claims": ([Write("a"), Write("b"), Write("c", "swap"), Write("d", "swap")], [["c", "d"], ["a", "b"]]),
    "a claim does not wait for all ends": (
        [Write("a"), *(Write("k", "swap") for _ in range(6)), Write("b")],
        [*[["k"]] * line.MOST_AHEAD, ["a", "b"], ["k"], ["k"]],
    ),
    "a large request waits its turn and no longer": (
        [Write("a"), Write("thousand", None), Write("b"), Write("more", None), Write("c")],
        [["a", "b", "c"], ["thousand"], ["more"]],
    ),
}


@both
@pytest.mark.parametrize("case", LINES)
def test_each_batch_takes_what_can_leave_together(run, server, case):
    writes, batches = LINES[case]
    assert run(server, writes, server.open()) == [f"{write.key} done" for write in writes]
    assert server.seen == [["first"], *batches]


@both
@pytest.mark.parametrize("error", [refusals.SqlRefusal("22021", "wrong bytes"), ValueError("NUL")])
def test_a_poisonous_write_fails_alone(error, run, server):
    server.poison["b"] = error
    assert run(server, [Write("a"), Write("b"), Write("c")], server.open()) == ["a done", error, "c done"]


@both
def test_ends_leave_before_claims(run, server):
    run(server, [Write("a"), Write("b"), Write("c", "swap"), Write("d", "swap")], server.open())
    assert server.seen == [["first"], ["c", "d"], ["a", "b"]]


@both
def test_a_claim_does_not_wait_until_there_are_no_more_ends(run, server):
    run(server, [Write("a"), *(Write("k", "swap") for _ in range(6)), Write("b")], server.open())
    assert server.seen == [["first"], *[["k"]] * line.MOST_AHEAD, ["a", "b"], ["k"], ["k"]]


@both
def test_a_lost_connection_puts_its_batch_in_doubt_and_no_other(run, server):
    server.poison["b"] = refusals.Broken("reset")
    outcomes = run(server, [Write("a"), Write("b"), Write("c", "swap")], server.open())
    assert [type(one) for one in outcomes] == [refusals.Broken, refusals.Broken, str]
    assert server.closed == 1


@both
def test_a_server_that_says_that_it_should_be_left_is_left(run, server):
    server.poison["a"] = refusals.SqlRefusal("25006", "read-only")
    outcomes = run(server, [Write("a"), Write("b")], server.open(left=frozenset({"25006"})))
    assert [one.state for one in outcomes] == ["25006", "25006"]
    assert server.closed == 1


def test_an_interrupted_carrier_leaves_nobody_waiting(server):
    server.poison["a"] = KeyboardInterrupt()
    server.answer = lambda keys, many: Server.answer(server, keys, many=False)
    outcomes = of_threads(server, [Write("a"), Write("b"), Write("c", "swap")], server.open())
    assert [type(one) for one in outcomes] == [KeyboardInterrupt, refusals.Broken, str]


async def test_a_waiter_that_is_cancelled_before_its_write_left_has_written_nothing(server):
    lanes = server.open()
    writes = [Write("first"), Write("a"), Write("b"), Write("c", None), Write("x"), Write("y"), Write("z")]
    tasks = [asyncio.ensure_future(lanes.run_async(write, asked)) for write in writes]
    await asyncio.sleep(0.01)
    for gone in (1, 2, 4):
        tasks[gone].cancel()
    server.go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for one in outcomes if isinstance(one, str)] == ["first done", "c done", "y done", "z done"]
    assert server.seen == [["first"], ["c"], ["y", "z"]]


async def test_a_cancelled_waiter_does_not_stop_the_batch_that_carries_its_write(server):
    lanes = server.open()
    first, gone, other = (asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "a", "b"))
    await asyncio.sleep(0.01)
    server.held = {"a"}
    while ["first"] not in server.seen:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    gone.cancel()
    server.go.set()
    _, gone, other = await asyncio.gather(first, gone, other, return_exceptions=True)
    assert (type(gone), other) == (asyncio.CancelledError, "b done")
    assert server.seen == [["first"], ["a", "b"]]


def test_who_waits_too_long_is_told_and_its_neighbours_go_on(server):
    lanes = server.open(timeout=0.2)
    outcomes = []

    def work(key):
        try:
            outcomes.append(lanes.run(Write(key), asked))
        except refusals.Broken as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=work, args=(key,)) for key in ("first", "late")]
    threads[0].start()
    until(lambda: lanes._here.threads._all and not lanes._here.threads._idle)
    threads[1].start()
    until(lambda: outcomes)
    server.go.set()
    for thread in threads:
        thread.join()
    assert "in use for 0.2 s" in outcomes[0]
    assert (outcomes[1], server.seen) == ("first done", [["first"]])


def test_a_forked_child_makes_lanes_of_its_own_and_closes_none(server):
    lanes = server.open()
    lanes.run(Write("a"), asked)
    child = os.fork()
    if not child:
        try:
            parents = weakref.ref(server.lanes.pop())
            lanes.run(Write("b"), asked)
            gc.collect()
            os._exit(0 if (len(server.lanes), server.closed, parents() is None) == (1, 0, False) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lanes.run(Write("c"), asked)
    assert len(server.lanes) == 1


@both
def test_writes_that_wait_at_a_close_are_done_and_the_lane_is_closed_then(run, server):
    lanes, go = server.open(), server.go
    server.go = SimpleNamespace(set=lambda: (lanes.close(), go.set()), wait=go.wait, is_set=go.is_set)
    assert run(server, [Write("a"), Write("b")], lanes) == ["a done", "b done"]
    assert server.closed == 1


@pytest.mark.parametrize(("is_ready", "closed"), [(True, 2), (False, 1)])
def test_a_lost_lane_takes_the_idle_ones_with_it_unless_it_could_not_open(is_ready, closed, server):
    lanes = server.open(most=2)._here.threads
    idle, lost = lanes._free(), lanes._free()
    lanes._pass_on(idle)
    lost.is_ready = is_ready
    lanes._end(lost, refusals.Broken("reset"))
    assert server.closed == closed


def test_a_connection_is_closed_before_the_collector_takes_it_with_its_lane():
    """Which comes first in a circle is chance, and a driver's socket that comes first warns that nobody has closed it."""

    class Wire:
        is_open = True

        def __del__(self):
            ends.append(self.is_open)

    class Lane(SocketLane):
        fetch = is_alive = None

        @staticmethod
        def _close(wire, friendly):
            wire.is_open = friendly

    ends, wire, lane = [], Wire(), Lane()
    lane.circle = [lane, lane._hold(wire)]
    del wire, lane
    gc.collect()
    assert ends == [False]


@both
def test_an_answer_that_cannot_be_read_fails_alone(run, server):
    server.unreadable["b"] = StoreError("too long")
    outcomes = run(server, [Write("a"), Write("b"), Write("c")], server.open())
    assert outcomes == ["a done", server.unreadable["b"], "c done"]
    assert server.closed == 0


async def test_waiters_of_a_loop_do_not_wait_longer_for_a_lane_that_never_comes_back(server):
    lanes = server.open(timeout=0.1)
    first, late = (asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "late"))
    with pytest.raises(refusals.Broken, match=r"in use for 0\.1 s"):
        await asyncio.wait_for(late, 5)
    server.go.set()
    told = await first
    assert told == "first done"
    assert server.seen == [["first"]]


async def test_waiters_of_a_loop_do_not_wait_for_ever_for_an_answer(server):
    server.lane_async = lambda: Deaf(server)
    lanes = server.open(timeout=0.1)
    tasks = [asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "late")]
    await asyncio.sleep(0.01)
    server.go.set()
    await tasks[0]
    server.go.clear()
    server.held = {"late"}
    with pytest.raises(refusals.Broken, match=r"within 0\.3 s"):
        await asyncio.wait_for(tasks[1], 5)


class Deaf(AwaitedLane):
    async def fetch(self, kind, keys, many):
        if keys == ["late"]:
            await asyncio.Event().wait()
        return await super().fetch(kind, keys, many)


def test_a_server_that_takes_no_more_connections_costs_none_that_are_open(server):
    lanes = server.open(most=2)
    lanes.run(Write("a"), asked)
    server.full = refusals.Broken("too many clients")
    assert of_threads(server, [Write("b"), Write("c")], lanes) == ["b done", "c done"]


def test_lanes_of_a_loop_that_somebody_keeps_are_closed_when_it_has_ended(server):
    async def write(key):
        await lanes.run_async(Write(key), asked)

    lanes, loop = server.open(), asyncio.new_event_loop()
    loop.run_until_complete(write("a"))
    loop.close()
    asyncio.run(write("b"))
    assert server.closed == 1


class Interrupted(Write):
    @property
    def size(self):
        if not self.asked:
            self.asked = True
            raise KeyboardInterrupt
        return 10

    @size.setter
    def size(self, size):
        self.asked = False


def test_an_interrupt_while_a_batch_is_gathered_loses_no_waiter(server):
    outcomes = of_threads(server, [Write("a"), Write("b"), Interrupted("c"), Write("d")], server.open(timeout=2.0))
    assert [type(one) for one in outcomes] == [KeyboardInterrupt, refusals.Broken, str, str]
    assert server.seen == [["first"], ["c", "d"]]


async def test_a_carrier_that_is_cancelled_before_it_begins_leaves_nobody_waiting(server):
    stopped = []

    def cancelling(loop, work, **options):
        task = asyncio.Task(work, loop=loop, **options)
        if work.__name__ == "_serve" and not stopped:
            stopped.append(task)
            task.cancel()
        return task

    asyncio.get_running_loop().set_task_factory(cancelling)
    lanes = server.open()
    tasks = [asyncio.ensure_future(lanes.run_async(Write(key), asked)) for key in ("first", "a", "b")]
    await asyncio.sleep(0.01)
    server.go.set()
    told = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert told == ["first done", "a done", "b done"]
    assert stopped


def test_a_waiter_sees_that_an_interrupt_has_lost_the_lane(server):
    lanes, outcomes = server.open(), []
    lost = [lanes._here.threads._free()]
    thread = threading.Thread(target=lambda: outcomes.append(lanes.run(Write("a"), asked)))
    thread.start()
    until(lambda: lanes._here.threads._line)
    server.lanes.clear()
    lost.clear()
    gc.collect()
    thread.join(5)
    assert outcomes == ["a done"]


class Lost(Exception):
    """A driver's own error."""


def read(end):
    if not end.recv(1):
        raise Lost


@pytest.fixture
def ends():
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def test_a_server_that_does_not_answer_is_told_as_such(ends):
    with pytest.raises(refusals.Broken, match="not answered in time") as told, limits.limited(ends[0], 0.05):
        read(ends[0])
    assert isinstance(told.value.__cause__, Lost)


def test_a_connection_whose_answer_came_in_time_stays_open(ends):
    for _ in range(3):
        with limits.limited(ends[0], 60):
            ends[1].send(b"a")
            read(ends[0])
    with pytest.raises(Lost), limits.limited(ends[0], 60):  # the driver's own error is its own
        raise Lost
    ends[1].send(b"a")
    read(ends[0])


def test_a_block_that_an_interrupt_has_lost_shuts_nothing_down(ends):
    limits.limited(ends[0], 0.05).__enter__()  # and nobody leaves it
    time.sleep(0.6)
    ends[1].send(b"a")
    read(ends[0])
