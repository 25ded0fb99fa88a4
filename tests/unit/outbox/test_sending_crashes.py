"""What a crash, a pause or a lost reply leaves of messages, and who sends it."""

import contextlib
import multiprocessing
import os
import threading
import time

import pytest

import onceward
from explorer.actors import note_unsent
from faults.injected import Faults, fail_after, fail_before, settling, when
from onceward import Once
from onceward.celery.guarding import worker_process_shutdown
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import completed
from onceward.core.steps import end
from onceward.errors import StoreError
from onceward.observe.observers import UNOBSERVED
from onceward.outbox import MessageNotSent, register
from onceward.outbox import sender as senders
from onceward.outbox.sending import SendingRecord
from onceward.results.message_entries import unsent_of
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues.boxes import Box, JournalTarget, drained, left_by_a_crash, place, record_of
from waiting import until

pytestmark = pytest.mark.usefixtures("quick")


def test_a_duplicate_sends_what_a_crash_has_left(box, clock, monkeypatch):
    once = Once(MemoryStore(clock), name="n")
    left_by_a_crash(once, monkeypatch, "7", (box.address, "1"), (box.address, "2"))
    before = record_of(once)
    assert before.due_at == clock() + 30
    once.run("7", place(box))  # not due yet: its worker may be sending
    drained()
    assert box.bodies == []
    clock.advance(30)
    once.run("7", place(box))
    drained()
    assert box.bodies == ["1", "2"]
    after = record_of(once)
    assert (after.unsent, after.due_at, after.result) == (None, None, before.result)
    assert after.expires_at == before.lease_until + Policy().retention


def test_a_duplicate_in_a_batch_and_one_of_a_claim_send_too(box, clock, monkeypatch):
    once = Once(MemoryStore(clock), name="n")
    for key in "78":
        left_by_a_crash(once, monkeypatch, key, (box.address, key))
    clock.advance(30)
    once.batch(lambda n: n, key="n", name="n").run(["7"])
    with pytest.raises(onceward.Completed):
        once.acquire("8", name="n")
    drained()
    assert sorted(box.bodies) == ["7", "8"]


def test_a_pause_right_before_a_send_is_noticed(once, box, monkeypatch):
    away, told = [0.0], []
    real_message, real_noted = SendingRecord.message, SendingRecord.noted

    def message(self):
        if not told:
            away[0] = 60.0  # this process is stopped here
        return real_message(self)

    def noted(self, outcome):
        away[0] = 0.0
        told.append("asked the ledger")
        return real_noted(self, outcome)

    monkeypatch.setattr("onceward.outbox.sending.boottime", lambda: boottime() + away[0])
    monkeypatch.setattr(SendingRecord, "message", message)
    monkeypatch.setattr(SendingRecord, "noted", noted)
    real_send = box.target.send
    box.target.send = lambda messages: (told.append("sent"), real_send(messages))[1]
    once.run("7", place(box, 1))
    drained()
    assert told == ["asked the ledger", "sent", "asked the ledger"]
    assert box.bodies == ["1"]


def faulty(store, plan):
    made = Faults(store, plan)
    made.capabilities = store.capabilities
    return made


@pytest.mark.parametrize("of", ["completion", "strike-out"])
def test_a_lost_reply_sends_nothing_again(box, of):
    is_lost = settling if of == "completion" else lambda ask: bool(box.bodies)
    once = Once(faulty(MemoryStore(), when(is_lost, fail_after(), times=1)))
    once.run("7", place(box, 1))
    drained()
    assert box.bodies == ["1"]
    assert record_of(once).unsent is None


def test_a_completion_whose_reply_came_late_takes_no_send_lease_from_another(once, box):
    claim = once.acquire("7")
    claim.send(box.address, 1)
    whole = claim.carrying(completed("1"))
    ended = drive(end(once.store, claim.record, whole, claim.policy, clock=boottime, until=boottime), once.store).record
    relays = f'{{"by":"relay",{ended.unsent.partition(",")[2]}'
    note = note_unsent(once.store, ended, relays, due=30.0, keep=60.0, clock=boottime, until=boottime)
    taken = drive(note, once.store).record
    claim.complete(1)  # it meets its own completion, whose reply was lost
    drained()
    assert box.target.sent == []
    assert record_of(once) == taken


def test_a_store_that_is_away_for_the_strike_out_sends_again_with_the_same_key(box):
    clock = ManualClock()
    store = faulty(MemoryStore(clock), when(lambda ask: bool(box.bodies), fail_before(StoreError)))
    once = Once(store, name="n")
    once.run("7", place(box, 1))
    until(lambda: not len(senders.SENDER))
    assert box.bodies == ["1"]
    store.plan = lambda ask: None
    assert record_of(once).unsent is not None
    clock.advance(60)
    once.run("7", place(box))
    until(lambda: record_of(once).unsent is None)
    assert box.bodies == ["1", "1"]
    assert len({message.key for message in box.target.sent}) == 1


def test_progress_is_noted_so_that_no_message_is_sent_again(box):
    clock = ManualClock()
    once = Once(MemoryStore(clock), name="n")
    box.target.answers.extend([None, MessageNotSent("away", retry_after=86_400)])
    once.run("7", place(box, 1, 2))
    until(lambda: (record_of(once).due_at or 0) >= clock() + 86_400)
    record = record_of(once)
    (left,) = unsent_of(record.unsent).messages
    assert (left.body, left.tries) == ("2", 1)
    relay = senders.Sender()  # of another process, when it is due
    relay.hand_over(SendingRecord(once.store, record, None, UNOBSERVED))
    assert relay.drain(5) == 0
    assert box.bodies == ["1", "2"]


def test_messages_that_another_version_wrote_are_left_alone(box, caplog):
    once = Once(MemoryStore())
    claim = once.acquire("7")
    claim.complete()
    record = claim.record._replace(unsent="[1]")
    assert not senders.send_soon(once.store, record, None, UNOBSERVED)
    assert "its unsent messages cannot be read" in caplog.text


def test_a_forked_child_sends_nothing_of_its_parent(box, once):
    with once.claim("7") as claim:
        claim.send(box.address, 1)
        child = os.fork()
        if child == 0:
            os._exit(len(senders.SENDER))
        assert os.waitpid(child, 0)[1] == 0
    drained()
    assert box.bodies == ["1"]


def _completes(url, address):
    once = Once(url)
    with once.claim("7") as claim:
        claim.send(address, "from a child")


def test_a_child_of_multiprocessing_sends_before_it_ends(tmp_path):
    journal = tmp_path / "sent"
    register("journal", lambda address: JournalTarget(address, journal, before=lambda _: time.sleep(0.3)))
    url = f"sqlite:///{tmp_path}/ledger.db"
    child = multiprocessing.get_context("fork").Process(target=_completes, args=(url, "journal:a"))
    child.start()
    child.join()
    assert journal.read_text().endswith(" from a child\n")
    with contextlib.closing(Once(url)) as once:
        assert record_of(once).unsent is None


@pytest.mark.parametrize("drains", [drained, lambda: worker_process_shutdown.send(None)])
def test_a_process_that_can_start_no_thread_sends_while_it_drains_and_one_of_celery_at_its_end(
    once, box, monkeypatch, drains
):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        once.run("7", place(box, 1, 2))
        assert box.bodies == []
        drains()
    assert box.bodies == ["1", "2"]


def test_draining_waits_for_no_target_that_has_failed_and_its_records_take_the_room_of_no_other(once, monkeypatch):
    monkeypatch.setattr(senders, "STUCK", 2)
    monkeypatch.setattr(senders, "MOST", 3)
    other, dead = Box(), Box()
    dead.target.answers.append(MessageNotSent("away", retry_after=600))
    rows = [([dead], 1), ([dead], 2), ([dead], 2), ([dead], 2), ([other], 2), ([other, dead], 2)]
    for number, (targets, left) in enumerate(rows):
        with once.claim(number) as claim:
            for to in targets:
                claim.send(to.address, number)
        assert senders.SENDER.drain(600) == left
    unsent = [record.unsent for record, _ in once.ledger.records() if record.unsent is not None]
    assert [len(unsent_of(one).messages) for one in unsent] == [1] * 5  # what the last one has sent is written
    assert 0 < senders.SENDER.pause_of(dead.address) <= 600
    assert other.bodies == ["4", "5"]
