"""DynamoDB's clock is the one that counts: what its answers and their Date tell, and owners whose own clocks run as they like."""

import contextlib
import math
import time
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceward import Busy, Completed, LeaseLost, Once, StoreError
from onceward.core.drivers import drive
from onceward.stores import open_store
from onceward.stores.dynamodb import open_table
from onceward.testing.bench import claim_of
from onceward.testing.clock import EPOCH, ManualClock
from onceward.wire.calls import Many, ObjectCall, ServiceAnswer
from onceward.wire.clock import ServerClock

TINY = 1e-3  # seconds that floats of this size may be off
latencies, quick = st.floats(0, 5), st.floats(0, 0.1)
gaps = st.one_of(st.floats(0, 3), st.floats(0, 300))


class Heard(NamedTuple):
    """A request and its answer: the pause before it, its way there and back, and whether the answer has a date."""

    gap: float
    out: float
    back: float
    dated: bool = True


heard = st.builds(Heard, gaps, latencies, latencies, st.booleans())


class Pair:
    """A server's clock and an owner's, which starts anywhere and may run at another speed; and the ServerClock between."""

    def __init__(self, offset: float, rate: float = 1.0) -> None:
        self.true = EPOCH + 0.25
        self.offset, self.rate = offset, rate
        self.clock = ServerClock(self.owners)

    def owners(self) -> float:
        return self.offset + (self.true - EPOCH) * self.rate

    def ask(self, one: Heard, ahead: float = 0.0) -> None:
        self.true += one.gap
        sent = self.owners()
        self.true += one.out
        date = math.floor(self.true + ahead) if one.dated else None
        self.true += one.back
        self.clock.learn(ServiceAnswer(200, {}, date, sent, self.owners()))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.floats(-1e6, 1e6), st.lists(heard, min_size=1, max_size=20), st.floats(0, 1000))
def test_the_interval_holds_the_servers_time(offset, answers, later):
    pair = Pair(offset)
    for one in answers:
        pair.ask(one)
        assert pair.clock.known or not any(a.dated for a in answers[: answers.index(one) + 1])
        if pair.clock.known:
            assert pair.clock.earliest() - TINY <= pair.true <= pair.clock.latest() + TINY
    pair.true += later
    if pair.clock.known:
        assert pair.clock.earliest() - TINY <= pair.true <= pair.clock.latest() + TINY


def test_answers_around_a_full_second_tell_the_time_to_a_few_milliseconds():
    pair = Pair(0.0)
    for _ in range(100):
        pair.ask(Heard(0.013, 0.002, 0.002))
    assert pair.clock.latest() - pair.clock.earliest() < 0.03


def test_what_was_known_of_clocks_that_drift_apart_is_forgotten():
    pair = Pair(0.0, rate=1.001)
    for _ in range(100):
        pair.ask(Heard(0.013, 0.002, 0.002))
    for pause in (300.1, 300.1, 300.1):  # seconds, in each of which the clocks move apart by a thousandth
        pair.ask(Heard(pause, 0.002, 0.002))
        assert pair.clock.earliest() - TINY <= pair.true <= pair.clock.latest() + TINY


def test_an_answer_without_a_date_tells_nothing():
    clock = ServerClock(ManualClock())
    clock.learn(ServiceAnswer(200, {}, None, 0.0, 0.0))
    assert not clock.known
    assert clock.earliest() == -math.inf, "no lease has lapsed by a clock that nobody has seen"
    assert clock.signing() == pytest.approx(time.time(), abs=60)


class World:
    """The true time, and the moment at which the server dealt with the last request."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.dealt = EPOCH


class Skewed:
    """An owner's clock: where it starts, how fast it runs, and the seconds that it missed."""

    def __init__(self, world: World, start: float, rate: float) -> None:
        self.world, self.start, self.rate, self.missed = world, start, rate, 0.0

    def at(self, true: float) -> float:
        return self.start + (true - EPOCH - self.missed) * self.rate

    def __call__(self) -> float:
        return self.at(self.world.now)


class Slow:
    """Wires on which requests and answers take their time, to front ends whose clocks are not quite the same."""

    renew = staticmethod(lambda: False)

    def __init__(self, wires, world, clock) -> None:
        self._wires, self._world, self._clock = wires, world, clock
        self.out = self.back = self.ahead = 0.0

    def send(self, call, at):
        assert not isinstance(call, Many)
        sent = self._clock()
        self._world.now += self.out
        answer = self._wires.send(call, at)
        date = float(math.floor(self._world.now + self.ahead))
        self._world.dealt = self._world.now
        self._world.now += self.back
        return answer._replace(date=date, sent=sent, received=self._clock())


class Act(NamedTuple):
    """What one of the workers does, after how long, and how its requests fare."""

    worker: int
    what: str
    gap: float
    out: float
    back: float
    ahead: float


LEASE = 30.0


class Run:
    """Two workers on one key; says when one gets it while the other believes that it has it."""

    def __init__(self, table, endpoint, key, clocks) -> None:
        self.world = World()
        self.key = key
        self.clocks = [Skewed(self.world, *clock) for clock in clocks]
        self.wires, self.onces = [], []
        for clock in self.clocks:
            store = open_table(table, endpoint=endpoint, clock=clock)
            store._wires = Slow(store._wires, self.world, clock)
            self.wires.append(store._wires)
            self.onces.append(Once(store, clock=clock, lease=LEASE))
        self.claims = [None, None]
        self.frozen = [False, False]  # while it held its claim: then it cannot know
        for once in self.onces:
            drive(once.store.load("?"), once.store)  # a process that has seen an answer

    def do(self, act: Act) -> None:
        self.world.now += act.gap
        wires = self.wires[act.worker]
        wires.out, wires.back, wires.ahead = act.out, act.back, act.ahead
        getattr(self, act.what)(act.worker, act)

    def freeze(self, worker, act) -> None:
        self.clocks[worker].missed += act.gap
        self.frozen[worker] = True

    def look(self, worker, act) -> None:
        drive(self.onces[worker].store.load("?"), self.onces[worker].store)

    def acquire(self, worker, act) -> None:
        if self.claims[worker] is not None:
            return
        held = self.claims[1 - worker]
        try:
            claim = self.onces[worker].acquire(self.key)
        except Busy as error:
            busy = error
        else:
            busy = None
        if busy is not None:
            assert busy.retry_after <= 1.1 * LEASE + 12
            return
        self.claims[worker], self.frozen[worker] = claim, False
        if held is not None and not self.frozen[1 - worker]:
            believed = held._until - self.clocks[1 - worker].at(self.world.dealt)
            assert believed <= 0, f"taken over {believed} s before its owner stopped believing in it"
        lease = self._stored().lease_until - self.world.now
        assert claim.remaining <= lease + 0.06, "it is believed longer than the store grants it"

    def extend(self, worker, act) -> None:
        claim, self.claims[worker] = self.claims[worker], None
        if claim is not None:
            with contextlib.suppress(LeaseLost):
                claim.extend()
                self.claims[worker], self.frozen[worker] = claim, False

    def complete(self, worker, act) -> None:
        claim, self.claims[worker] = self.claims[worker], None
        if claim is not None and act.gap < 10:
            mine = self._stored(claim.record.key).owner == claim.record.owner
            with pytest.raises(LeaseLost) if not mine else contextlib.nullcontext():
                claim.complete(1)
                with pytest.raises(Completed):
                    self.onces[1 - worker].acquire(self.key)
                self.key = f"k{next(numbers)}"  # the work goes on with another

    def close(self) -> None:
        for wires in self.wires:
            wires._wires.close()

    def _stored(self, key=None):
        """The record as it stands, seen without any time passing."""
        store = self.onces[0].store
        wires = self.wires[0]
        was, wires.out, wires.back = (wires.out, wires.back), 0.0, 0.0
        answer = wires._wires.send(store.requests.get(key or f"claim:{self.key}", consistent=True), time.time())
        wires.out, wires.back = was
        return store.layout.record(answer.body["Item"])


def lists_of(verbs, gaps, ways, ahead):
    acts = st.builds(Act, st.integers(0, 1), st.sampled_from(verbs.split()), gaps, ways, ways, ahead)
    return st.lists(acts, min_size=2, max_size=20)


numbers = iter(range(10**9))
clocks = st.tuples(st.floats(-1e6, 1e6), st.floats(0.999, 1.001))
around = st.floats(25, 35)
acts = lists_of(
    "acquire acquire acquire extend freeze complete complete",
    st.one_of(st.floats(0, 70), around),
    st.one_of(st.floats(0, 0.1), st.floats(0, 4)),
    st.floats(-0.05, 0.05),
)
# Of two servers whose clocks differ by a second, in the worst case.
apart = lists_of(
    "acquire acquire extend complete look look",
    st.one_of(st.floats(0, 3), around),
    st.floats(0, 0.1),
    st.sampled_from([-0.5, -0.3, 0.0, 0.3, 0.5]),
)
EQUAL = [(0.0, 1.0), (5e5, 1.0)]


@settings(
    deadline=None, derandomize=True, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(st.tuples(st.tuples(clocks, clocks), acts), st.tuples(st.just(EQUAL), apart)))
def test_nobody_gets_a_key_while_its_owner_believes_in_its_lease(aws, table, dynoxide, given):
    two, steps = given
    run = Run(table, dynoxide.url, f"k{next(numbers)}", two)
    for act in steps:
        run.do(act)
    run.close()


@pytest.mark.parametrize("back", [0.0, 0.9])
@pytest.mark.parametrize("missed", [0.3, 0.5, 0.99, 1.0, 1.5, 1.99, 10.0, 3600.0])
def test_a_freeze_that_no_clock_shows_extends_no_lease(url, table, dynoxide, missed, back):
    """As of a Lambda function between two calls; of a claim that was held meanwhile the owner knows when it asks."""
    run = Run(table, dynoxide.url, f"frozen{missed}{back}", EQUAL)
    for _ in range(30):  # it knows the time to a few hundredths of a second, and nothing tells it of the freeze
        run.do(Act(0, "look", 0.21, 0, 0, 0))
    run.world.now += missed
    run.clocks[0].missed += missed
    run.do(Act(0, "acquire", 0, 0, back, 0))
    assert run.claims[0].remaining > 0
    run.do(Act(1, "acquire", 0, 0, 0, 0))
    assert run.claims[1] is None, "its lease is live"
    if missed < 2:
        run.world.now += missed
        run.clocks[0].missed += missed
        run.do(Act(0, "extend", 10, 0, back, 0))
        assert run.claims[0].remaining <= run._stored().lease_until - run.world.now, "until its lease ends"
    run.do(Act(1, "acquire", LEASE + 2.5, 0, 0, 0))
    assert run.claims[1] is not None
    run.close()


def test_without_a_date_in_the_answers_nothing_runs_until_there_was_one(url, proxy):
    proxy.dateless = True
    entered = []
    with pytest.raises(StoreError, match="Date header"):
        Once(url).using(name="n").run("k", entered.append, 1)
    assert entered == []
    assert "PutItem" not in proxy.actions
    proxy.dateless = False
    once = Once(url)
    once.acquire("warm")
    proxy.dateless = True
    assert once.acquire("k").remaining == pytest.approx(60, abs=3)
    with pytest.raises(Busy):
        once.acquire("k")


@pytest.mark.parametrize("off", [-3600, 3600])
def test_the_first_request_is_signed_again_with_the_servers_time(url, proxy, off):
    proxy.date = lambda: time.time() + off
    proxy.tolerance = 300
    once = Once(url)
    assert once.using(name="n").run("k", lambda: 1) == 1
    assert proxy.actions == ["GetItem", "GetItem", "PutItem", "UpdateItem"]
    assert once.using(name="n").run("k", lambda: 2) == 1
    assert len(proxy.actions) == 5


def test_every_request_of_a_frozen_processs_batch_is_signed_again(proxy, table, dynoxide):
    clock = ManualClock()
    missed = 0.0
    proxy.date = lambda: clock() + missed
    proxy.tolerance = 300
    store = open_table(table, endpoint=proxy.url, clock=clock)
    drive(store.load("warm"), store)
    proxy.seen.clear()
    missed = -3600.0
    replies = drive(store.insert_many([claim_of(f"k{n}", "a") for n in range(60)]), store)
    assert [reply.won for reply in replies] == [True] * 60
    # Refused, and stamped and signed anew with the server's own time.
    assert max(abs(reply.record.lease_until - clock() - missed - 60) for reply in replies) < 3
    assert proxy.actions == ["BatchExecuteStatement"] * 6
    assert len(dynoxide.items(table)) == 60


@pytest.fixture
def stands(table, dynoxide):
    """Returns when the lease of the claim on "k" ends, as it stands in the table."""

    def read():
        (item,) = [item for item in dynoxide.items(table) if item["key"]["S"].endswith(":k")]
        return float(item["lease_until"]["N"])

    return read


@pytest.mark.parametrize("off", [-3600, -30])
def test_a_renewal_never_lowers_a_lease_though_server_shows_another_time(url, proxy, stands, off):
    once = Once(url)
    claim = once.acquire("k")
    before, left = stands(), claim.remaining
    proxy.date = lambda: time.time() + off
    for _ in range(3):
        claim.extend()
    assert stands() >= before
    assert claim.remaining <= max(left, 60), "nor is it believed in for longer than was asked for"
    proxy.date = None
    with pytest.raises(Busy):
        Once(url).acquire("k")
    claim.complete()


def test_a_frozen_process_asks_before_it_stamps(url, proxy, monkeypatch):
    once = Once(url)
    once.run("warm", int)
    proxy.seen.clear()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    once.run("k", int)
    assert proxy.actions == ["GetItem", "PutItem", "UpdateItem"]


def test_the_clock_of_s3_is_not_the_ledgers(url):
    store = open_store(url)
    drive(store.load("k"), store)
    before = store.clock.earliest()
    steps = store.learn_from(ObjectCall("GET", "b", "k"), ServiceAnswer(200, b"", before + 7200, 0.0, 0.0))
    with pytest.raises(StopIteration):
        next(steps)
    assert store.clock.earliest() == pytest.approx(before, abs=1)
