"""Each event of a guard, a claim, a transaction, a batch and a checkpoint."""

import logging
import sqlite3

import pytest

from faults.injected import Faults, at, fail_before
from onceward import Busy, Completed, LeaseLost, Mismatch, Once, Parked, ResultNotRecorded, current
from onceward.core import worker
from onceward.observe import Event, StoreRequest
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from waiting import until


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


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def once(heard):
    return Once("memory:", name="n", observe=[heard])


class House:
    """A ledger on a clock that is moved by hand, and an observer."""

    def __init__(self):
        self.clock, self.heard = ManualClock(1000.0), Heard()
        self.store = MemoryStore(self.clock)
        self.once = self.other(self.heard)

    def other(self, *observers):
        return Once(self.store, name="n", clock=self.clock, observe=observers)

    def run(self, handler, **options):
        return self.once.using(**options).run("k", handler)


@pytest.fixture
def house():
    return House()


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
    assert (replayed.kind, replayed.attempt) == ("replayed", 1)


def test_what_memory_answers_is_told_without_asking_the_ledger(house):
    @house.once.using(cache=10, final=(ValueError,))(key="order", fingerprint="amount")
    def handler(order, amount):
        return boom()

    for _ in range(2):
        with pytest.raises(ValueError, match="the payload"):
            handler(1, 5)
    with pytest.raises(Mismatch):
        handler(1, 6)
    assert house.heard.kinds == ["claimed", "completed", "replayed", "mismatch"]
    assert [type(event.error) for event in house.heard[1::2]] == [ValueError, Mismatch]
    house.heard.clear(), house.heard.requests.clear()
    remembered = house.once.using(cache=10)(key="n")(lambda n: n)
    assert [remembered(2), remembered(2)] == [2, 2]
    assert house.heard[2] == Event("replayed", "n:2", "n")
    assert [request.action for request in house.heard.requests] == ["insert", "swap"]
    assert {(request.store, request.error) for request in house.heard.requests} == {(house.store.url, "")}


def test_a_handler_that_raises_has_failed(house):
    def handle():
        house.clock.advance(3)
        raise type("Falsy", (ValueError,), {"__len__": lambda _: 0})("the payload")

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
    house.once.acquire("k", lease=40)
    house.clock.advance(1)
    with pytest.raises(Busy):
        house.run(int)
    assert house.run(int, on_busy="skip") is None
    busy = house.heard[1]
    assert house.heard.kinds == ["claimed", "busy", "busy"]
    assert (busy.left, busy.waited, type(busy.error)) == (39, 0, Busy)


@pytest.mark.parametrize(("verb", "kind"), [("release", "released"), ("park", "parked")])
def test_a_claim_that_is_ended_by_hand_is_told(house, verb, kind):
    claim = house.once.acquire("k")
    house.clock.advance(4)
    getattr(claim, verb)("odd")
    assert house.heard.kinds == ["claimed", kind]
    assert (house.heard[1].error, house.heard[1].ran) == ("odd", 4)


@pytest.mark.parametrize("verb", ["complete", "release", "extend"])
def test_a_claim_that_was_taken_over_is_lost_once(house, verb):
    claim = house.once.acquire("k", lease=10)
    house.clock.advance(11)
    house.run(int)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            getattr(claim, verb)()
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


def test_a_heartbeat_that_finds_no_record_of_its_own_tells_that_lease_is_lost(once, heard):
    def handle():
        once.ledger.clear("n:k", live=True)
        until(lambda: "lost" in heard.kinds)

    with pytest.raises(LeaseLost):
        once.using(lease=2, heartbeat=0.05).run("k", handle)
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

    once = house.other(fail, house.heard)
    for key in range(3):
        assert once.run(str(key), int) == 0
    told = [record for record in caplog.records if "observer" in record.message]
    assert house.heard.kinds == ["claimed", "completed"] * 3
    assert len(told) == 3  # claimed, completed and store_request
    assert all("the observer's own" in record.exc_text for record in told if record.exc_text)


def test_a_log_that_raises_changes_nothing(house, monkeypatch):
    def emit(*_):
        raise RuntimeError("the log's own")

    monkeypatch.setattr(logging.getLogger("onceward"), "handle", emit)
    assert house.other().acquire("k").park("odd") is None


def test_an_interrupt_in_an_observer_goes_on_and_gives_the_key_back(house):
    def interrupt(event):
        if event.kind == "claimed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        house.other(interrupt).run("k", int)
    assert house.run(int) == 0
    assert house.heard[0].attempt == 1


def test_a_log_line_stays_one_line_without_controls(house, caplog):
    house.other().acquire("k").park("no\nERROR root: all is lost\x1b[2J\u202e")
    (told,) = caplog.messages
    assert "no\\nERROR root: all is lost\\x1b[2J\\u202e" in told
    assert told.isprintable()


def test_what_a_person_must_look_at_is_a_warning_that_quotes_no_payload(house, caplog):
    once = house.other()
    with pytest.raises(ValueError, match="the payload"):
        once.using(on_error="park").run("parked", boom)
    claim = once.acquire("lost", lease=10)
    house.clock.advance(11)
    once.run("lost", int)
    with pytest.raises(LeaseLost):
        claim.complete()
    told = [(record.levelname, record.message.partition(":")[2][:9]) for record in caplog.records]
    assert told == [("WARNING", "parked: p"), ("WARNING", "lost: its")]
    assert "the payload" not in caplog.text
    assert "ValueError" in caplog.text


def test_a_step_is_told_once_made_and_once_answered(once, heard):
    def handle():
        claim = current()
        claim.step(("mail", 1), lambda: None)
        if claim.attempt == 1:
            raise ValueError

    with pytest.raises(ValueError):
        once.run("k", handle)
    once.run("k", handle)
    told = [event for event in heard if event.kind == "step"]
    told = [(event.step, event.attempt, event.again, event.ran is None) for event in told]
    assert told == [("(mail,1)", 1, False, False), ("(mail,1)", 2, True, True)]


def run(once, handle, records):
    return once.batch(handle, key="record.id", name="b").run(records)


def told(heard):
    return [(event.key, event.kind) for event in heard]


def work(record):
    if record.get("fails"):
        raise ValueError("the payload")
    return record["id"]


def test_each_record_is_claimed_and_then_ended(once, heard):
    records = [{"id": 1}, {"id": 2, "fails": True}, {"id": 1}, {}]
    run(once, work, records)
    assert told(heard) == [
        (None, "malformed"),
        ("b:1", "claimed"),
        ("b:2", "claimed"),
        ("b:1", "completed"),
        ("b:2", "failed"),
        ("b:1", "replayed"),  # the same key again in this batch
    ]
    assert {event.name for event in heard} == {"b"}
    assert isinstance(heard[4].error, ValueError)
    assert heard[0].error is not None
    assert all(event.ran is not None and event.left > 0 for event in heard[3:5])


def test_what_is_claimed_and_not_begun_is_given_back(once, heard):
    def handle(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(once, handle, [{"id": 1}, {"id": 2}])
    assert told(heard) == [("b:1", "claimed"), ("b:2", "claimed"), ("b:1", "interrupted"), ("b:2", "released")]


def test_an_observer_of_a_batch_may_use_the_ledger_and_its_interrupts_give_keys_back(tmp_path):
    def observe(event):
        if event.kind == "completed":
            once.run(f"audit-{event.key}", int)
        if event.key == "b:9":
            raise KeyboardInterrupt

    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n", observe=[observe])
    assert [one.status for one in run(once, work, [{"id": 1}, {"id": 2}])] == ["done"] * 2
    with pytest.raises(KeyboardInterrupt):
        run(once, work, [{"id": 9}])
    assert once.ledger.stats()["COMPLETED"] == 4
    assert once.ledger.stats()["IN_PROGRESS"] == 0
    once.close()


def test_the_keys_of_a_flush_are_claimed_and_completed(once, heard):
    for items in ([1, 2], [2]):
        with once.checkpoint(len, key="item", name="c") as sink:
            for item in items:
                sink.add(item)
    claimed, completed = [("c:1", "claimed"), ("c:2", "claimed")], [("c:1", "completed"), ("c:2", "completed")]
    assert told(heard) == [*claimed, *completed, ("c:2", "replayed")]
