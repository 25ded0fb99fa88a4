"""The relay: what it finds, what it leaves alone and says, how it shares the work, and what a person decides."""

import contextlib
import logging
import os
import signal
import sqlite3
import threading
import time

import pytest

import onceward
from faults.injected import Faults, fail_before
from onceward import Once, OncewardError, StoreError
from onceward.cli import relay
from onceward.outbox import MessageNotSent, MessageRefused, Relay, register, targets
from onceward.outbox import sender as senders
from onceward.outbox.pending import decide_refused
from onceward.outbox.sender import Sender
from onceward.stores.contract import HasUnsent
from onceward.stores.memory import MemoryStore
from queues.boxes import Box, drained, left_by_a_crash
from waiting import until

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def once(store, clock):
    return Once(store, name="n")


@pytest.fixture
def crashed(once, monkeypatch):
    def crash(key, *messages, **options):
        left_by_a_crash(once.using(**options) if options else once, monkeypatch, key, *messages)

    return crash


def test_messages_of_a_crashed_process_are_sent_when_their_lease_is_over(once, box, crashed, clock):
    crashed("k", (box.address, "a"), (box.address, "b"))
    relay = Relay(once)
    found = relay.look()
    assert (found.taken, found.more) == (0, False)
    assert 0 < found.wait <= 30.0
    clock.advance(31.0)
    assert relay.look().taken == 1
    drained()
    assert box.bodies == ["a", "b"]
    record, _ = once.ledger.show("n:k")
    assert (record.unsent, record.due_at) == (None, None)
    assert relay.look().taken == 0


def test_a_relay_can_be_used_again_but_not_twice_at_a_time(once, box, crashed, clock):
    relay = Relay(once, every=0.01)
    for number in range(2):
        crashed(str(number), (box.address, "a"))
        clock.advance(31.0)
        with relay, pytest.raises(RuntimeError, match="already"):
            until(lambda: len(box.bodies) == number + 1)  # noqa: B023 - it is called at once
            relay.start()


def test_two_relays_send_each_message_once(once, store, box, crashed, clock, monkeypatch):
    for number in range(60):
        crashed(str(number), (box.address, f"{number} a"), (box.address, f"{number} b"))
    clock.advance(31.0)
    monkeypatch.setattr(Sender, "_staff", lambda _: False)  # both look before either sends
    processes = [Sender(), Sender()]
    for sender, ledger in zip(processes, (once, Once(store, name="n")), strict=True):
        monkeypatch.setattr(senders, "SENDER", sender)
        assert Relay(ledger).look().taken == 60
    threads = [threading.Thread(target=sender.drain, args=[30.0]) for sender in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(box.bodies) == sorted(f"{number} {part}" for number in range(60) for part in "ab")
    for number in range(60):
        assert box.bodies.index(f"{number} a") < box.bodies.index(f"{number} b")


def test_sealed_messages_are_left_and_said_and_hide_no_other(once, box, crashed, clock, caplog):
    reverse = (lambda data: data[::-1],) * 2
    for number in range(5):
        crashed(f"sealed {number}", (box.address, "secret"), seal=reverse)
    clock.advance(1.0)
    crashed("open", (box.address, "open"))
    clock.advance(31.0)
    relay = Relay(once, every=0.01)
    left = relay.run(until_empty=True)
    drained()
    assert box.bodies == ["open"]
    assert len(left) == 5
    assert "they are sealed, and this relay has no seal" in left.values()
    assert sum("they are sealed" in record.message for record in caplog.records) == 1
    assert Relay(once, seal=reverse).look().taken == 5
    drained()
    assert box.bodies == ["open", *["secret"] * 5]


def test_a_target_that_this_process_does_not_know_is_left_and_said(once, box, crashed, clock, monkeypatch):
    crashed("k", (box.address, "a"))
    clock.advance(31.0)
    monkeypatch.setattr("onceward.outbox.targets._registered", {})
    monkeypatch.setattr("onceward.outbox.targets._opened", {})
    ((key, why),) = Relay(once).look().left.items()
    assert key == "n:k"
    assert "names no target" in why
    assert once.ledger.show("n:k")[0].beat == 1  # nobody has taken its lease
    register(box.address.partition(":")[0], lambda _: box.target)
    with monkeypatch.context() as patch:  # the sender has enough for it, and other targets' records come behind
        patch.setattr(Sender, "is_full", lambda *_: True)
        assert Relay(once).look()[1:4] == ({"n:k": f"{box.address} has failed, and is tried again later"}, False, False)
    assert Relay(once).look().taken == 1
    drained()


def test_a_later_message_that_only_others_can_send_is_left_to_them(once, store, box, crashed, clock, monkeypatch):
    monkeypatch.setattr("onceward.outbox.sending.FIRST_PAUSE", 60.0)
    other = Box()
    crashed("k", (box.address, "a"), (other.address, "b"))
    clock.advance(31.0)
    scheme = other.address.partition(":")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(targets._registered, scheme)
        patch.delitem(targets._opened, other.address)
        Relay(once).look()
        assert senders.SENDER.drain(5) == 1  # this process goes on trying, too
    assert (box.bodies, other.bodies) == (["a"], [])
    monkeypatch.setattr(senders, "SENDER", Sender())  # another process, which knows both
    assert Relay(once).look().taken == 1
    drained()
    assert other.bodies == ["b"]


def test_a_ledger_that_goes_away_is_tried_again(store, box, clock, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "onceward")
    away = threading.Event()
    faulty = Faults(store, lambda ask: fail_before() if away.is_set() else None)
    faulty.capabilities = {"outbox": f"{__name__}:outbox"}
    once = Once(faulty, name="n")
    left_by_a_crash(once, monkeypatch, "k", (box.address, "a"))
    clock.advance(31.0)
    away.set()
    with pytest.raises(StoreError):
        Relay(once).run(until_empty=True)
    relay = Relay(once, every=0.01)
    thread = threading.Thread(target=relay.run)
    thread.start()
    until(lambda: "tries again" in caplog.text)
    away.clear()
    until(lambda: box.bodies)
    relay.stop()
    thread.join(60)
    drained()
    assert box.bodies == ["a"]
    assert caplog.text.count("a relay cannot look for messages, and tries again") == 1
    assert "the relay works again" in caplog.text


def outbox(faulty):
    """Need nothing."""
    yield from ()


def test_a_ledger_without_the_index_has_no_relay_and_no_error(tmp_path, caplog):
    once = Once(f"sqlite:///{tmp_path}/a.db")
    once.run("1", len, "abc")
    once.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("DROP INDEX onceward_due")
    relay = Relay(once, every=0.01)
    relay.start()
    relay._thread.join(60)
    assert not relay._thread.is_alive()
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    with pytest.raises(StoreError, match="no such index"):
        relay.check()
    once.close()


@pytest.fixture
def refused(once, box, crashed, clock):
    """The first message of a key is refused, the second is sent."""
    crashed("k", (box.address, "a"), (box.address, "b"))
    clock.advance(31.0)
    box.target.answers.append(MessageRefused("too old"))
    Relay(once).look()
    assert senders.SENDER.drain(5.0) == 0
    return once.ledger


def test_a_refused_message_waits_for_a_person_who_puts_it_back(refused, once, box):
    assert box.bodies == ["b"]
    assert [record.key for record, _ in refused.records(status="REFUSED")] == ["n:k"]
    assert list(refused.records(status="UNSENT")) == []
    assert refused.stats()["refused"] == 1
    assert Relay(once).look().taken == 0
    (entry,) = decide_refused(refused, "n:k", again=True)
    assert (entry.to, entry.body) == (box.address, "a")
    assert "too old" in entry.refused
    assert Relay(once).look().taken == 1
    drained()
    assert box.bodies == ["b", "a"]
    assert refused.show("n:k")[0].unsent is None


def test_a_refused_message_is_dropped_and_the_retention_counts_again(refused, box):
    (entry,) = decide_refused(refused, "n:k", again=False)
    assert entry.body == "a"
    record, _ = refused.show("n:k")
    assert (record.unsent, record.due_at) == (None, None)
    assert record.expires_at == record.lease_until + onceward.Policy().retention
    with pytest.raises(OncewardError, match="it has no unsent messages"):
        decide_refused(refused, "n:k", again=False)


@pytest.mark.parametrize("change", ["clear", "retry"])
def test_a_record_with_unsent_messages_is_neither_cleared_nor_retried(change, once, box, crashed):
    def handle():
        claim = onceward.current()
        claim.step("one", len, "abc")
        claim.send(box.address, "a")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(senders, "send_soon", lambda *told: True)
        once.run("k", handle)
    attempt = {"clear": lambda: once.ledger.clear("n:k"), "retry": lambda: once.ledger.retry("n:k", "one")}[change]
    with pytest.raises(HasUnsent, match=rf"1 message\(s\) are not sent yet, to {box.address}\. `onceward relay"):
        attempt()
    assert once.ledger.show("n:k")[0].unsent is not None
    once.ledger.clear("n:k", unsent=True)
    assert list(once.ledger.records()) == []


def test_a_signal_ends_a_look_that_still_sends(once, box, crashed, clock, monkeypatch, capfd):
    crashed("k", (box.address, "a"))
    clock.advance(31.0)

    def send(_):
        time.sleep(0.5)  # the look has ended
        os.kill(os.getpid(), signal.SIGTERM)
        return [MessageNotSent("away", retry_after=600)]

    monkeypatch.setattr(box.target, "send", send)
    assert relay._run(Relay(once), relay.RelayReport(as_json=True), look_once=True) == relay.LEFT
    assert '"ended":"stopped"' in capfd.readouterr().out
