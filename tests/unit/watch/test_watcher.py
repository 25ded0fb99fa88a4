"""What a watcher tells, and that several watchers tell it once."""

import json
import threading

import pytest

from onceward import Once
from onceward.core import worker
from onceward.core.drivers import drive
from onceward.core.outbox_writes import noting
from onceward.core.record import COMPLETED, PARKED
from onceward.core.writes import ended, first_claim
from onceward.stores.inspection import Finding
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.watch import IncidentLimits, Notice, Watcher, incidents
from onceward.watch.incidents import NAME, Incident


class Told(list):
    """Takes notices, or fails."""

    down = False

    def __call__(self, notice: Notice) -> None:
        if self.down:
            raise ConnectionError("the webhook is down")
        self.append(notice)

    def take(self):
        found = [(one.event, one.kind, sorted(incident.subject for incident in one.incidents)) for one in self]
        self.clear()
        return found


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def once(clock):
    return Once(MemoryStore(clock), clock=clock)


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def watch(once, told, clock):
    def make(**options):
        return Watcher(
            once, [told], IncidentLimits(stuck=600.0, lapsed=60.0), **{"doctor": False, "clock": clock, **options}
        )

    return make


def vanish(notice):
    raise SystemExit


def park(once, key, reason="the bank said no"):
    once.acquire(key, name="n").park(reason)


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_cannot_be_told_holds_up_no_other(once, clock, order):
    away, there = Told(), Told()
    away.down = True
    watcher = Watcher(once, [away, there][::order], doctor=False, clock=clock)
    park(once, "a")
    assert len(watcher.round().errors) == 1
    park(once, "b")
    watcher.round()
    assert there.take() == [("began", "parked", ["n:a"]), ("began", "parked", ["n:b"])]
    away.down = False
    watcher.round()
    assert away.take() == [("began", "parked", ["n:a", "n:b"])]
    assert there.take() == []
    assert watcher.round().notices == []


def test_a_parked_key_is_told_once_and_once_when_it_is_over(once, told, watch):
    watcher = watch()
    park(once, "a")
    watcher.round()
    (notice,) = told
    assert notice.text.startswith("parked began: n:a: the bank said no (attempt 1 of ")
    assert told.take() == [("began", "parked", ["n:a"])]
    watcher.round()
    assert told.take() == []
    once.ledger.unpark("n:a")
    watcher.round()
    watcher.round()
    assert told.take() == [("over", "parked", ["n:a"])]


def test_a_quiet_ledger_is_told_of_by_nothing(once, told, watch):
    once.acquire("k", name="n").complete(1)
    assert watch().round() == ([], [])
    assert told == []


def test_what_is_new_in_one_round_is_one_notice_of_each_kind(once, told, watch, clock):
    once.acquire("gone", name="n", lease=10)
    clock.advance(100.0)
    for key in "abc":
        park(once, key)
    watch().round()
    assert sorted(told.take()) == [("began", "lapsed", ["n:gone"]), ("began", "parked", ["n:a", "n:b", "n:c"])]


def test_many_incidents_are_told_in_several_notices(once, told, watch):
    for number in range(120):
        park(once, number)
    watch().round()
    assert sorted(len(one.incidents) for one in told) == [20, 50, 50]
    assert "and 47 more" in told[0].text


def test_a_key_that_is_parked_again_is_told_again(once, told, watch):
    watcher = watch()
    park(once, "a")
    watcher.round()
    once.ledger.unpark("n:a")
    park(once, "a")
    watcher.round()
    assert sorted(told.take()) == [
        ("began", "parked", ["n:a"]),
        ("began", "parked", ["n:a"]),
        ("over", "parked", ["n:a"]),
    ]


def test_a_worker_that_holds_its_key_for_long_is_told(once, told, watch, clock):
    claim = once.acquire("slow", name="n", lease=60)
    for _ in range(20):
        clock.advance(40.0)
        claim.extend()
    watcher = watch()
    watcher.round()
    assert told.take() == [("began", "stuck", ["n:slow"])]
    claim.complete(None)
    watcher.round()
    assert told.take() == [("over", "stuck", ["n:slow"])]


def test_a_lapsed_key_is_told_after_a_while(once, told, watch, clock):
    once.acquire("gone", name="n", lease=10)
    clock.advance(30.0)
    watcher = watch()
    watcher.round()
    assert told.take() == []
    clock.advance(60.0)
    watcher.round()
    assert told.take() == [("began", "lapsed", ["n:gone"])]


def test_a_message_that_is_sent_in_vain_again_and_again_is_overdue(once, told, watch, clock, monkeypatch):
    monkeypatch.setattr("onceward.outbox.sender.send_soon", lambda *_, **__: None)
    claim = once.acquire("a", name="n")
    claim.send("https://shop.example/hooks", "hello")
    claim.complete(None)
    watcher = watch()

    def tried_in_vain():
        record, _ = once.ledger.show("n:a")
        drive(once.store.swap(noting(record, record.unsent, 300.0, None), record), once.store)
        watcher.round()

    tried_in_vain()
    assert told.take() == []
    for _ in range(5):
        clock.advance(299.0)
        tried_in_vain()
    assert told.take() == [("began", "overdue", ["n:a"])]
    record, _ = once.ledger.show("n:a")
    drive(once.store.swap(noting(record, None, None, 60.0), record), once.store)
    watcher.round()
    assert told.take() == [("over", "overdue", ["n:a"])]


@pytest.mark.parametrize("key", [600 * "k", 300 * "é\x1b😀", 200 * '"\\'])
def test_a_long_key_is_named_when_it_is_over(once, told, watch, key):
    watcher = watch()
    claim = ended(first_claim(f"n:{key}", "o", None, once.policy), PARKED, None, 900 * "\x00")
    drive(once.store.insert(claim), once.store)
    watcher.round()
    assert told.take() == [("began", "parked", [f"n:{key}"])]
    once.ledger.unpark(f"n:{key}")
    watcher.round()
    ((event, kind, (subject,)),) = told.take()
    assert (event, kind) == ("over", "parked")
    assert f"n:{key}".startswith(subject.rstrip("…"))
    assert len(subject) > 100


@pytest.mark.parametrize("note", ["null", "5", "[1]", "{", ""])
def test_a_note_that_cannot_be_read_is_told_all_the_same(note):
    assert Incident.of_note(note, "key")[:2] == ("incident", "key")


def test_doctors_warnings_are_told(once, told, watch, clock):
    watcher = watch(doctor=True)
    watcher.round()
    (notice,) = told
    assert notice.kind in {"warning", "error"}  # a ledger in memory forgets
    assert watcher.round() == ([], [])


def test_a_clock_that_is_wrong_for_one_host_is_over_for_that_host_alone(once, told, watch, clock, monkeypatch):
    off = Finding("warning", "clock", "the server's clock is 3.0 s ahead of this host's")

    def look(host, *findings):
        monkeypatch.setattr(worker, "process", f"{host}/1")
        monkeypatch.setattr(incidents, "diagnosis", lambda _: findings)
        return watch(doctor=True).round()

    look("late", off)
    for _ in range(3):
        clock.advance(4000)
        assert look("right") == ([], [])
        assert look("late", off) == ([], [])
    look("late")
    assert [(one.event, one.incidents[0].subject) for one in told] == [
        ("began", "clock, seen from late"),
        ("over", "clock, seen from late"),
    ]


def test_a_watcher_that_does_not_ask_doctor_does_not_say_that_a_warning_is_over(once, told, watch):
    watch(doctor=True).round()
    (notice,) = told
    assert watch(doctor=False).round() == ([], [])
    assert watch(doctor=True).round() == ([], [])
    assert told == [notice]


@pytest.mark.parametrize("event", ["began", "over"])
def test_what_could_not_be_told_is_told_later(once, told, watch, event):
    watcher = watch()
    park(once, "a")
    if event == "over":
        watcher.round()
        told.take()
        once.ledger.unpark("n:a")
    told.down = True
    (error,) = watcher.round().errors
    assert isinstance(error, ConnectionError)
    told.down = False
    watcher.round()
    watcher.round()
    assert told.take() == [(event, "parked", ["n:a"])]


def test_an_incident_that_ends_untold_is_told_when_it_is_over(once, told, watch):
    watcher = watch()
    park(once, "a")
    told.down = True
    watcher.round()
    once.ledger.unpark("n:a")
    told.down = False
    watcher.round()
    assert told.take() == [("over", "parked", ["n:a"])]


def test_a_watcher_that_vanished_is_followed_by_another(once, told, watch, clock):
    park(once, "a")

    with pytest.raises(SystemExit):
        Watcher(once, [vanish], doctor=False, lease=60.0, clock=clock).round()
    other = watch()
    other.round()
    assert told.take() == []  # the other may still tell it
    clock.advance(100.0)
    other.round()
    other.round()
    assert told.take() == [("began", "parked", ["n:a"])]


def test_a_watcher_that_vanished_at_the_end_is_followed_by_another(once, told, watch, clock):
    watcher = watch()
    park(once, "a")
    watcher.round()
    told.take()
    once.ledger.unpark("n:a")

    with pytest.raises(SystemExit):
        Watcher(once, [vanish], doctor=False, lease=60.0, clock=clock).round()
    clock.advance(100.0)
    watcher.round()
    ((event, _, _),) = told.take()
    assert event == "over"


def test_watchers_do_not_watch_themselves(once, told, watch, clock):
    park(once, "a")
    with pytest.raises(SystemExit):
        Watcher(once, [vanish], doctor=False, lease=60.0, clock=clock).round()
    clock.advance(1000.0)
    watch().round()
    assert told.take() == [("began", "parked", ["n:a"])]


def test_a_late_look_at_what_is_over_tells_nothing(once, told, watch):
    """Another watcher still sees an incident that was told to be over."""
    watcher = watch()
    park(once, "a")
    watcher.round()
    stale = once.store.records["n:a"]
    once.ledger.unpark("n:a")
    watcher.round()
    told.take()
    once.store.records["n:a"] = stale
    watch().round()
    assert told.take() == []


def test_three_watchers_at_once_tell_each_incident_once(tmp_path, told):
    url = f"sqlite:///{tmp_path}/ledger.db"
    with_keys = Once(url)
    for number in range(30):
        park(with_keys, number)
    watchers = [Watcher(Once(url), [told], doctor=False) for _ in range(3)]

    def both(turns=3):
        threads = [threading.Thread(target=lambda one=one: [one.round() for _ in range(turns)]) for one in watchers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    both()
    subjects = [incident.subject for notice in told for incident in notice.incidents]
    assert sorted(subjects) == sorted(f"n:{number}" for number in range(30))
    told.clear()
    for number in range(30):
        with_keys.ledger.unpark(f"n:{number}")
    both()
    subjects = [incident.subject for notice in told for incident in notice.incidents]
    assert sorted(subjects) == sorted(f"n:{number}" for number in range(30))
    assert {notice.event for notice in told} == {"over"}
    left = {record.status for record, _ in with_keys.ledger.records(prefix=f"{NAME}:")}
    assert left == {COMPLETED}


def test_a_notice_is_json_with_a_key_of_its_own(once, told, watch):
    park(once, "a", "\x1b[31mred")
    watch().round()
    (notice,) = told
    body = json.loads(notice.body)
    assert (body["event"], body["kind"], body["ledger"]) == ("began", "parked", once.store.url)
    assert body["incidents"][0]["subject"] == "n:a"
    assert "\x1b" not in notice.text
    assert notice.key != notice._replace(event="over").key


def test_an_incident_that_comes_back_is_told_under_another_key(once, told, watch, clock, monkeypatch):
    found = []
    monkeypatch.setattr("onceward.watch.watcher.warnings_of", lambda store: found)
    watcher = watch(doctor=True)
    keys = []
    for found[:] in ([Incident.of("error", "pitr", "it is off")], [], [Incident.of("error", "pitr", "it is off")]):
        told.down = True
        watcher.round()  # what is not told has the same key when it is told
        told.down = False
        watcher.round()
        keys += [(notice.event, notice.key) for notice in told]
        told.clear()
        clock.advance(4000.0)
    assert [event for event, _ in keys] == ["began", "over", "began"]
    assert len(set(keys)) == 3


def test_what_was_not_told_is_told_under_the_same_key(once, told, watch):
    once.acquire("k").park("boom")
    keys = []

    def tell(notice):
        keys.append(notice.key)
        if len(keys) == 1:
            raise ConnectionError("the webhook is down")

    watcher = watch()
    watcher._tell = [tell]
    watcher.round()
    watcher.round()
    assert len(keys) == 2
    assert len(set(keys)) == 1
