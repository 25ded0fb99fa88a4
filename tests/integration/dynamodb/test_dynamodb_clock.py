"""DynamoDB's clock is the one that counts: what its Date header says of the time, and owners whose own clocks run as they like."""

import contextlib
import math
import re
import time
from email.utils import formatdate
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
from servers.proxy import Fault, Refuse

# --- the interval that holds the server's time --------------------------------------------------------------------

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


@settings(deadline=None, derandomize=True)
@given(st.floats(-3600, 3600), st.lists(st.tuples(heard, st.booleans()), min_size=1, max_size=20))
def test_of_two_front_ends_that_disagree_the_one_heard_last_counts(apart, answers):
    pair = Pair(0.0)
    for one, other in answers:
        pair.ask(one, apart if other else 0.0)
        if one.dated:
            shown = pair.true + (apart if other else 0.0)
            # Closer than the answers can tell apart, the two times make one interval.
            width = 1 + one.out + one.back
            assert pair.clock.earliest() - width - TINY <= shown <= pair.clock.latest() + width + TINY


def test_an_answer_without_a_date_tells_nothing():
    clock = ServerClock(ManualClock())
    clock.learn(ServiceAnswer(200, {}, None, 0.0, 0.0))
    assert not clock.known
    assert clock.earliest() == -math.inf, "no lease has lapsed by a clock that nobody has seen"
    assert clock.signing() == pytest.approx(time.time(), abs=60)


# --- leases, on clocks that start anywhere, run at different speeds, and stand still ------------------------------


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


acts = st.lists(
    st.builds(
        Act,
        st.integers(0, 1),
        st.sampled_from(["acquire", "acquire", "acquire", "extend", "freeze", "complete", "complete"]),
        st.one_of(st.floats(0, 70), st.floats(25, 35)),
        st.one_of(st.floats(0, 0.1), st.floats(0, 4)),
        st.one_of(st.floats(0, 0.1), st.floats(0, 4)),
        st.floats(-0.05, 0.05),
    ),
    min_size=2,
    max_size=20,
)
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

    def _stored(self, key=None):
        """The record as it stands, seen without any time passing."""
        store = self.onces[0].store
        wires = self.wires[0]
        was, wires.out, wires.back = (wires.out, wires.back), 0.0, 0.0
        answer = wires._wires.send(store.requests.get(key or f"claim:{self.key}", consistent=True), time.time())
        wires.out, wires.back = was
        return store.layout.record(answer.body["Item"])


clocks = st.tuples(st.floats(-1e6, 1e6), st.floats(0.999, 1.001))
numbers = iter(range(10**9))


@settings(
    deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.tuples(clocks, clocks), acts)
def test_nobody_gets_a_key_while_its_owner_believes_in_its_lease(aws, table, dynoxide, two, steps):
    run = Run(table, dynoxide.url, f"k{next(numbers)}", two)
    for act in steps:
        run.do(act)
    for once in run.onces:
        once.store._wires._wires.close()


@pytest.mark.parametrize("back", [0.0, 4.0])
@pytest.mark.parametrize("missed", [2.0, 10.0, 25.0, 3600.0])
def test_a_process_that_missed_time_believes_no_longer_than_store_grants(aws, table, dynoxide, missed, back):
    """As a Lambda function that was frozen between two calls: its first request is stamped in the past."""
    run = Run(table, dynoxide.url, "k", [(0.0, 1.0), (5e5, 1.0)])
    run.do(Act(0, "acquire", 0, 0, 0, 0))
    run.do(Act(0, "complete", 0, 0, 0, 0))
    run.world.now += missed
    run.clocks[0].missed += missed
    run.do(Act(0, "acquire", 0, 0, back, 0))
    assert run.claims[0].remaining > 0
    run.do(Act(1, "acquire", 0, 0, 0, 0))
    assert run.claims[1] is None, "its lease is live"
    run.do(Act(1, "acquire", LEASE + 2.5, 0, 0, 0))
    assert run.claims[1] is not None
    for wires in run.wires:
        wires._wires.close()


# --- an answer without the time -----------------------------------------------------------------------------------


def test_without_a_date_in_the_answers_nothing_runs(url, proxy):
    proxy.dateless = True
    entered = []
    with pytest.raises(StoreError, match="Date header"):
        Once(url).using(name="n").run("k", entered.append, 1)
    assert entered == []
    assert "PutItem" not in proxy.actions


def test_one_answer_without_a_date_changes_nothing(url, proxy):
    once = Once(url)
    once.acquire("warm")
    proxy.dateless = True
    assert once.acquire("k").remaining == pytest.approx(60, abs=3)
    with pytest.raises(Busy):
        once.acquire("k")


# --- requests that are refused because of their time --------------------------------------------------------------


@pytest.mark.parametrize("off", [-3600, 3600])
def test_the_first_request_is_signed_again_with_the_servers_time(url, proxy, off):
    proxy.date = lambda: time.time() + off
    proxy.tolerance = 300
    once = Once(url)
    assert once.using(name="n").run("k", lambda: 1) == 1
    assert proxy.actions == ["GetItem", "GetItem", "PutItem", "UpdateItem"]
    assert once.using(name="n").run("k", lambda: 2) == 1
    assert len(proxy.actions) == 5


def test_a_process_that_was_frozen_for_an_hour_signs_its_claim_again(proxy, table, dynoxide):
    clock = ManualClock()
    missed = 0.0
    proxy.date = lambda: clock() + missed
    proxy.tolerance = 300
    once = Once(open_table(table, endpoint=proxy.url, clock=clock), clock=clock)
    once.acquire("warm")
    proxy.seen.clear()
    missed = 3600.0
    claim = once.acquire("k")
    # Refused, and stamped and signed anew with the server's own time.
    assert proxy.actions == ["PutItem", "PutItem"]
    assert claim.remaining == pytest.approx(60, abs=3)
    until = float(next(i for i in dynoxide.items(table) if i["key"]["S"].endswith(":k"))["lease_until"]["N"])
    assert until == pytest.approx(clock() + missed + 60, abs=3)


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
    assert proxy.actions == ["BatchExecuteStatement"] * 6
    assert len(dynoxide.items(table)) == 60


def test_a_signature_that_is_refused_for_good_is_tried_twice(url, proxy):
    once = Once(url)
    once.acquire("warm")
    proxy.seen.clear()
    proxy.rule = lambda seen: Refuse("InvalidSignatureException", 400, "The request signature we calculated ...")
    entered = []
    with pytest.raises(StoreError, match="secret key"):
        once.using(name="n").run("k", entered.append, 1)
    assert entered == []
    assert len(proxy.seen) == 2


# --- renewals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"lease": 3.0}, {"lease": 60.0, "heartbeat": 1.0}], ids=str)
def test_a_claim_is_renewed_at_its_interval_and_not_all_the_time(url, proxy, options):
    began = time.monotonic()
    with Once(url).claim("k", **options):
        time.sleep(1.5)
    assert len(proxy.actions) <= 4 + (time.monotonic() - began), "its time and claim, one renewal a second, its end"


# --- answers that are not DynamoDB's own, and times that do not agree ---------------------------------------------


def page(status, at):
    """What a proxy in between answers by itself: a page, dated by its own clock."""
    date = formatdate(int(at), usegmt=True)
    body = b"<html>Service Unavailable</html>"
    head = f"HTTP/1.1 {status}\r\nDate: {date}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def lease_in(body, before):
    """The end of the lease after an update, which does not name it if it stays as it was."""
    marks = [mark for mark, name in body["ExpressionAttributeNames"].items() if name == "lease_until"]
    if not marks:
        return before
    (mark,) = marks
    place = re.search(rf"{mark} = (:\w+)", body["UpdateExpression"])[1]
    return float(body["ExpressionAttributeValues"][place]["N"])


@pytest.fixture
def stands(table, dynoxide):
    """Returns when the lease of the claim on "k" ends, as it stands in the table."""

    def read():
        (item,) = [item for item in dynoxide.items(table) if item["key"]["S"].endswith(":k")]
        return float(item["lease_until"]["N"])

    return read


@pytest.mark.parametrize(
    "off", [-3600, -240, 240, 3600]
)  # signatures of five minutes ago are taken, and older ones not
@pytest.mark.parametrize("status", ["503 Service Unavailable", "407 Proxy Authentication Required"])
def test_the_page_of_a_proxy_does_not_teach_the_time(url, proxy, stands, status, off):
    once = Once(url)
    claim = once.acquire("k")
    before = stands()
    proxy.rule = lambda seen: Fault(raw=page(status, time.time() + off))
    with pytest.raises(StoreError):
        claim.extend()
    proxy.clear()
    claim.extend()
    written = [lease_in(seen.body, before) for seen in proxy.seen if seen.action == "UpdateItem"]
    assert written
    assert all(before <= until <= before + 30 for until in written), "nor for a moment"
    assert before <= stands() <= before + 30
    assert 50 < claim.remaining < 61
    with pytest.raises(Busy):
        Once(url).acquire("k")


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


@pytest.mark.parametrize("back", [0.0, 0.9])
@pytest.mark.parametrize("missed", [0.3, 0.5, 0.99, 1.0, 1.5, 1.99])
def test_a_short_freeze_that_no_clock_shows_extends_no_lease(url, table, dynoxide, missed, back):
    """A claim that is made, or renewed, after it; of one that was held meanwhile the owner cannot know before it asks."""
    run = Run(table, dynoxide.url, f"frozen{missed}{back}", [(0.0, 1.0), (5e5, 1.0)])
    for _ in range(30):  # it knows the time to a few hundredths of a second, and nothing tells it of the freeze
        run.do(Act(0, "look", 0.21, 0, 0, 0))
    run.world.now += missed
    run.clocks[0].missed += missed
    run.do(Act(0, "acquire", 0, 0, back, 0))
    assert run.claims[0].remaining > 0
    run.world.now += missed
    run.clocks[0].missed += missed
    run.do(Act(0, "extend", 10, 0, back, 0))
    claim = run.claims[0]
    assert claim.remaining <= run._stored().lease_until - run.world.now, "until its lease ends, and no longer"
    run.do(Act(1, "acquire", 0, 0, 0, 0))
    assert run.claims[1] is None, "its lease is live"
    for wires in run.wires:
        wires._wires.close()


apart = st.lists(
    st.builds(
        Act,
        st.integers(0, 1),
        st.sampled_from(["acquire", "acquire", "extend", "complete", "look", "look"]),
        st.one_of(st.floats(0, 3), st.floats(25, 35)),
        st.floats(0, 0.1),
        st.floats(0, 0.1),
        st.sampled_from([-0.5, -0.3, 0.0, 0.3, 0.5]),
    ),
    min_size=2,
    max_size=20,
)


@settings(
    deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(apart)
def test_servers_whose_clocks_differ_by_second_give_no_key_to_two_owners(aws, table, dynoxide, steps):
    run = Run(table, dynoxide.url, f"k{next(numbers)}", [(0.0, 1.0), (5e5, 1.0)])
    for act in steps:
        run.do(act)
    for once in run.onces:
        once.store._wires._wires.close()


# --- machines that were frozen --------------------------------------------------------------------------------------


def test_a_transaction_after_a_two_hour_freeze_has_the_servers_time(dynoxide, proxy, table):
    money = dynoxide.table(f"money-{table}", {"id": "S"})
    counted = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    effects = [{"Update": {"TableName": money, "Key": {"id": {"S": "alice"}}, **counted}}]
    clock = ManualClock()
    missed = 0.0
    proxy.date = lambda: clock() + missed
    proxy.tolerance = 300
    once = Once(open_table(table, endpoint=proxy.url, clock=clock), clock=clock, retention=3600)
    once.acquire("warm")
    missed = 7200.0
    assert once.transact("k", effects, 1) == 1
    other = Once(open_table(table, endpoint=proxy.url, clock=lambda: clock() + missed), retention=3600)
    assert other.transact("k", effects, 2) == 1, "the record has not expired"
    (account,) = dynoxide.items(money)
    assert account["n"] == {"N": "1"}


def test_the_servers_time_is_asked_anew_when_the_machines_own_clocks_part(monkeypatch):
    from onceward.core.clock import boottime

    clock = ServerClock(boottime)
    assert not clock.known
    now = boottime()
    clock.learn(ServiceAnswer(200, {}, 1e9, now, now))
    assert clock.known
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)  # as after a snapshot was restored
    assert not clock.known
    clock.learn(ServiceAnswer(200, {}, 1e9 + 3600, now, now))
    assert clock.known
    assert clock.earliest() == pytest.approx(1e9 + 3600, abs=1)


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
    steps = store.heard(ObjectCall("GET", "b", "k"), ServiceAnswer(200, b"", before + 7200, 0.0, 0.0))
    with pytest.raises(StopIteration):
        next(steps)
    assert store.clock.earliest() == pytest.approx(before, abs=1)
