"""The writes of a completed record's messages: send leases, progress, and what a lost reply means."""

import pytest

from explorer.actors import note_unsent
from faults.injected import Faults, at, fail_after
from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.core.outbox_writes import NEVER_DUE
from onceward.core.policy import Policy
from onceward.core.protocol import completed, has_messages, last_write, may_send
from onceward.core.steps import Bid, Lost, Won, claim, end
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock

POLICY = Policy(lease=10.0, retention=100.0)


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def record(store, clock):
    """A record that was completed with messages."""
    won = drive(claim(store, Bid("k", "me", None, POLICY, clock)), store)
    outcome = completed("1")._replace(unsent="m")
    return drive(end(store, won.record, outcome, POLICY, clock=clock, until=lambda: 0.0), store).record


def note(store, clock, record, unsent, due=5.0, keep=100.0):
    steps = note_unsent(store, record, unsent, due=due, keep=keep, clock=clock, until=lambda: clock() + 1.0)
    return drive(steps, store)


def test_a_completion_with_messages_never_expires_and_has_the_send_lease(record):
    assert (record.status, record.result, record.unsent) == ("COMPLETED", "1", "m")
    assert (record.expires_at, record.due_at) == (None, 1010.0)
    assert not may_send(record, 1009.9)
    assert may_send(record, 1010.0)
    assert protocol.retried(record, "[]") is None
    patient = Policy(lease=900.0)  # which does not delay messages for longer than half a minute
    assert last_write(record._replace(status="IN_PROGRESS"), completed("1")._replace(unsent="m"), patient).due == 30


def test_of_two_senders_one_gets_the_send_lease_and_believes_in_less_than_it_is(store, clock, record):
    clock.advance(20.0)
    first = note(store, clock, record, "m by a", due=5.0)
    assert note(store, clock, record, "m by b") == Lost(first.record)
    assert 1024.9 < first.until < first.record.due_at == 1025.0
    assert first.record.result == "1"
    refused = note(store, clock, first.record, "refused", due=NEVER_DUE).record  # for good, and found
    assert has_messages(refused)
    assert not may_send(refused, 5e9)


@pytest.mark.parametrize("unsent", ["m by me", None])
def test_a_lost_reply_to_a_write_of_messages_is_no_lost_write(store, clock, record, unsent, monkeypatch):
    monkeypatch.setattr("time.sleep", clock.advance)
    noted = note(Faults(store, at({1: fail_after()})), clock, record, unsent)
    assert isinstance(noted, Won)
    assert noted.record == store.records["k"]
