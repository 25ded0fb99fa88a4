"""Each event of a guard, a claim and a transaction, on memory and SQLite, sync and async."""

import asyncio
import logging
import sqlite3
import threading
import time

import pytest

from onceward import Busy, Completed, LeaseLost, Mismatch, Once, Parked, ResultNotRecorded, current
from onceward.core import worker
from onceward.observe import Event, StoreRequest
from onceward.stores.memory import MemoryStore
from onceward.stores.sqlite.store import SqliteStore
from onceward.testing.clock import ManualClock
from onceward.testing.faults import Faults, at, fail_before

pytestmark = pytest.mark.sampled(store_on=1, house=1)


class Heard(list):
    """An observer that keeps what it is told of."""

    def __call__(self, event):
        (self.requests if isinstance(event, StoreRequest) else self).append(event)

    def __init__(self):
        super().__init__()
        self.requests = []

    @property
    def kinds(self):
        return [event.kind for event in self]


class House:
    """A ledger on a clock that is moved by hand, and an observer; each call in one form, sync or async."""

    def __init__(self, store, clock, awaiting):
        self.store, self.clock, self.awaiting = store, clock, awaiting
        self.heard = Heard()
        self.once = self.other()

    def other(self, **options):
        return Once(self.store, name="n", clock=self.clock, observe=[self.heard], **options)

    def run(self, handler, key="k", **options):
        once = self.once.using(**options)
        if not self.awaiting:
            return once.run(key, handler)

        async def handle():
            return handler()

        return asyncio.run(once.run_async(key, handle))

    def acquire(self, key="k", **options):
        if self.awaiting:
            return asyncio.run(self.once.acquire_async(key, **options))
        return self.once.acquire(key, **options)

    def call(self, claim, verb, *args):
        return asyncio.run(getattr(claim, f"{verb}_async")(*args)) if self.awaiting else getattr(claim, verb)(*args)


@pytest.fixture(params=["memory", "sqlite"])
def store_on(request, tmp_path):
    return lambda clock: (
        MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "l.db", clock=clock)
    )


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def house(request, store_on):
    clock = ManualClock(1000.0)
    house = House(store_on(clock), clock, request.param)
    yield house
    house.once.close()


def boom():
    raise ValueError("the payload")


def test_a_first_call_is_claimed_and_completed_and_a_duplicate_replayed(house):
    def handle():
        house.clock.advance(2)
        return 1

    for _ in range(2):
        house.run(handle, lease=60)
    claimed, completed, replayed = house.heard
    assert claimed == Event("claimed", "n:k", "n", 1, claimed.fence, worker.process, waited=0)
    assert completed == Event(
        "completed", "n:k", "n", 1, claimed.fence, worker.process, ran=2, left=completed.left, took=2
    )
    assert 50 < completed.left < 58
    assert claimed.fence > 0
    assert (replayed.kind, replayed.attempt) == ("replayed", 1)


def test_what_memory_answers_is_told_without_asking_the_ledger(house):
    made = house.once.using(cache=10, final=(ValueError,))(key="order", fingerprint="amount")

    async def fail(order, amount):
        return boom()

    handler = made(fail) if house.awaiting else made(lambda order, amount: boom())

    def call(amount):
        return asyncio.run(handler(1, amount)) if house.awaiting else handler(1, amount)

    for _ in range(2):
        with pytest.raises(ValueError, match="the payload"):
            call(5)
    with pytest.raises(Mismatch):
        call(6)
    assert house.heard.kinds == ["claimed", "completed", "replayed", "mismatch"]
    assert isinstance(house.heard[1].error, ValueError)
    assert isinstance(house.heard[3].error, Mismatch)
    house.heard.clear(), house.heard.requests.clear()
    remembered = house.once.using(cache=10)(key="n")(make_async() if house.awaiting else lambda n: n)
    for _ in range(2):
        asyncio.run(remembered(2)) if house.awaiting else remembered(2)
    assert house.heard[2] == Event("replayed", "n:2", "n")
    assert [request.action for request in house.heard.requests] == ["insert", "swap"]
    assert {(request.store, request.error) for request in house.heard.requests} == {(house.store.url, "")}


def make_async():
    async def handle(n):
        return n

    return handle


def test_a_handler_that_raises_has_failed(house):
    def handle():
        house.clock.advance(3)
        boom()

    with pytest.raises(ValueError, match="the payload") as caught:
        house.run(handle)
    failed = house.heard[1]
    assert house.heard.kinds == ["claimed", "failed"]
    assert (failed.error, failed.ran, failed.attempt) == (caught.value, 3, 1)
    house.run(int)
    assert house.heard.kinds[2:] == ["claimed", "completed"]
    assert house.heard[2].attempt == 2


def test_key_parked_by_failure_is_told_once_and_each_delivery_of_it_again(house):
    with pytest.raises(ValueError, match="the payload"):
        house.run(boom, on_error="park")
    for _ in range(2):
        with pytest.raises(Parked):
            house.run(int)
    assert house.heard.kinds == ["claimed", "parked", "parked", "parked"]
    assert [event.again for event in house.heard] == [False, False, True, True]
    assert isinstance(house.heard[1].error, ValueError)
    assert isinstance(house.heard[2].error, Parked)


def test_a_busy_key_is_told_with_the_lease_left_and_the_time_waited(house):
    house.acquire(lease=40)
    house.clock.advance(1)
    with pytest.raises(Busy):
        house.run(int)
    assert house.run(int, on_busy="skip") is None
    busy = house.heard[1]
    assert house.heard.kinds == ["claimed", "busy", "busy"]
    assert (busy.left, busy.waited, type(busy.error)) == (39, 0, Busy)


@pytest.mark.parametrize(
    ("verb", "args", "kind", "error"),
    [
        ("complete", (1,), "completed", None),
        ("release", ("too early",), "released", "too early"),
        ("park", ("odd",), "parked", "odd"),
    ],
)
def test_a_claim_that_is_ended_by_hand_is_told(house, verb, args, kind, error):
    claim = house.acquire()
    house.clock.advance(4)
    house.call(claim, verb, *args)
    assert house.heard.kinds == ["claimed", kind]
    assert (house.heard[1].error, house.heard[1].ran) == (error, 4)


@pytest.mark.parametrize("verb", ["complete", "release", "extend"])
def test_a_claim_that_was_taken_over_is_lost_once(house, verb):
    claim = house.acquire(lease=10)
    house.clock.advance(11)
    house.run(int)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            house.call(claim, verb)
    assert house.heard.kinds == ["claimed", "taken_over", "completed", "lost"]
    assert house.heard[3].fence == house.heard[0].fence


def faulty(plan, **options):
    heard = Heard()
    store = Faults(MemoryStore(), at(plan))
    return Once(store, name="n", observe=[heard], **options), heard


def test_an_end_that_needs_another_try_is_settled_late():
    once, heard = faulty({2: fail_before(), 3: fail_before()})
    assert once.run("k", int) == 0
    assert heard.kinds == ["claimed", "completed", "settled_late"]
    assert 0 < heard[2].late < 5


def test_a_result_that_is_not_recorded_is_told():
    once, heard = faulty(dict.fromkeys(range(2, 1000), fail_before()), lease=0.3)
    with pytest.raises(ResultNotRecorded):
        once.run("k", int)
    assert heard.kinds == ["claimed", "not_recorded"]


def test_a_heartbeat_that_finds_another_owner_tells_that_lease_is_lost():
    store, heard = MemoryStore(), Heard()
    once = Once(store, name="n", observe=[heard], lease=2, heartbeat=0.05)

    def handle():
        once.ledger.clear("n:k", live=True)
        other = threading.Thread(target=Once(store, name="n").acquire, args=("k",))
        other.start()
        other.join()
        deadline = time.monotonic() + 20
        while "lost" not in heard.kinds and time.monotonic() < deadline:
            time.sleep(0.01)

    with pytest.raises(LeaseLost):
        once.run("k", handle)
    assert [kind for kind in heard.kinds if kind != "renewed"] == ["claimed", "lost"]


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE orders (id)")
    heard = Heard()

    def observe(event):
        heard(event)
        if isinstance(event, Event):  # which needs the file's lock
            Once(f"sqlite:///{path}", name="audit").run(f"{event.kind}{len(heard)}", int)

    once = Once(f"sqlite:////{path}", name="n", observe=[observe])
    yield once, connection, heard
    connection.close()
    once.close()


def test_a_transaction_is_told_when_it_is_over(shop):
    once, connection, heard = shop
    with pytest.raises(ValueError, match="the payload"), once.transaction("k", connection):
        boom()
    assert heard.kinds == ["claimed", "failed"]
    with once.transaction("k", connection):
        assert len(heard) == 2
    with pytest.raises(Completed), once.transaction("k", connection):
        pass
    assert heard.kinds[2:] == ["claimed", "completed", "replayed"]


def test_an_observer_that_raises_changes_nothing_and_is_told_of_once(house, caplog):
    def fail(event):
        raise RuntimeError("the observer's own")

    once = Once(house.store, name="n", clock=house.clock, observe=[fail, house.heard])
    for key in range(3):
        assert once.run(str(key), int) == 0
    told = [record for record in caplog.records if "observer" in record.message]
    assert house.heard.kinds == ["claimed", "completed"] * 3
    assert len(told) == 3  # claimed, completed and store_request
    assert all("the observer's own" in record.exc_text for record in told if record.exc_text)


def test_an_interrupt_in_an_observer_goes_on_and_gives_the_key_back(house):
    def interrupt(event):
        if event.kind == "claimed":
            raise KeyboardInterrupt

    once = Once(house.store, name="n", clock=house.clock, observe=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        once.run("k", int)
    assert house.run(int) == 0
    assert house.heard[0].attempt == 1


def test_a_log_line_stays_one_line_without_controls(house, caplog):
    once = Once(house.store, name="n", clock=house.clock)
    once.acquire("k").park("no\nERROR root: all is lost\x1b[2J\u202e")
    (told,) = caplog.messages
    assert "no\\nERROR root: all is lost\\x1b[2J\\u202e" in told
    assert told.isprintable()


def test_what_a_person_must_look_at_is_a_warning_that_quotes_no_payload(house, caplog):
    once = Once(house.store, name="n", clock=house.clock)
    with pytest.raises(ValueError, match="the payload"):
        once.using(on_error="park").run("parked", boom)
    claim = once.acquire("lost", lease=10)
    house.clock.advance(11)
    once.run("lost", int)
    with pytest.raises(LeaseLost):
        claim.complete()
    assert [(record.levelname, record.message.partition(":")[2][:9]) for record in caplog.records] == [
        ("WARNING", "parked: p"),
        ("WARNING", "lost: its"),
    ]
    assert "the payload" not in caplog.text
    assert "ValueError" in caplog.text


def test_a_step_is_told_once_made_and_once_answered():
    heard = Heard()
    once = Once(MemoryStore(), observe=[heard])

    def handle():
        claim = current()
        claim.step(("mail", 1), lambda: None)
        if claim.attempt == 1:
            raise ValueError

    with pytest.raises(ValueError):
        once.run("k", handle)
    once.run("k", handle)
    told = [event for event in heard if event.kind == "step"]
    assert [(event.step, event.attempt, event.again, event.ran is None) for event in told] == [
        ("(mail,1)", 1, False, False),
        ("(mail,1)", 2, True, True),
    ]


def test_a_handler_of_a_log_that_raises_changes_nothing(house):
    class Bad(logging.Handler):
        def emit(self, record):
            raise RuntimeError("the log's own")

    log, bad = logging.getLogger("onceward"), Bad()
    log.addHandler(bad)
    log.setLevel(logging.DEBUG)
    try:
        assert Once(house.store, name="n", clock=house.clock).run("k", int) == 0
    finally:
        log.setLevel(logging.NOTSET)
        log.removeHandler(bad)
