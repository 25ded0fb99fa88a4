"""Messages that leave with a completion: which are sent, when, in which order, and what is left in the ledger."""

import asyncio
import contextlib
import multiprocessing
import os
import sqlite3
import threading
import time

import pytest

import onceward
from onceward import Once, OncewardError
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.many import note_many
from onceward.core.outbox_writes import note_unsent
from onceward.core.policy import Policy
from onceward.core.protocol import completed
from onceward.core.steps import Won, end
from onceward.errors import StoreError
from onceward.observe.observers import UNOBSERVED
from onceward.outbox import MessageNotSent, MessageRefused, register
from onceward.outbox import sender as senders
from onceward.outbox.sending import SendingRecord
from onceward.results.message_entries import unsent_of
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues.boxes import Box, JournalTarget
from queues.recorded_target import RecordedTarget
from waiting import until


@pytest.fixture
def box():
    return Box()


@pytest.fixture
def once():
    return Once(MemoryStore())


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("onceward.outbox.sending.FIRST_PAUSE", 0.02)


def drained(seconds=5.0):
    assert senders.SENDER.drain(seconds) == 0


def record_of(once, prefix=""):
    ((record, _),) = once.ledger.records(prefix)
    return record


def test_a_message_leaves_with_the_completion(once, box):
    def place(order):
        key = onceward.current().send(box.address, {"order": order})
        assert box.target.sent == []
        return key

    key = once.run("7", place, 7)
    assert once.run("7", place, 7) == key  # a duplicate sends nothing
    drained()
    (message,) = box.target.sent
    record = record_of(once)
    assert (message.body, message.key) == ('{"order":7}', key)
    assert message.headers == {"onceward-root": record.key, "onceward-parent": record.key}
    assert (record.unsent, record.due_at) == (None, None)
    assert record.expires_at == record.lease_until + Policy().retention


def test_messages_keep_their_order(once, box):
    other = Box()

    def place():
        for n in range(6):
            onceward.current().send((box, other)[n % 2].address, n)

    once.run("7", place)
    drained()
    assert box.bodies == ["0", "2", "4"]
    assert other.bodies == ["1", "3", "5"]


def test_messages_of_different_keys_share_a_request():
    box = Box(batch=10)
    once = Once(MemoryStore())
    together = once.batch(lambda n: onceward.current().send(box.address, n), key="n", name="b")
    together.run(list(range(30)))
    drained()
    assert sorted(map(int, box.bodies)) == list(range(30))
    assert len(box.target.sends) < 30
    assert all(len(set(keys)) == len(keys) for keys in box.target.sends)


@pytest.mark.parametrize("options", [{}, {"final": (ValueError,)}, {"on_error": "park"}])
def test_a_handler_that_fails_sends_nothing(once, box, options):
    def place():
        onceward.current().send(box.address, "never sent")
        raise ValueError("declined")

    with pytest.raises(ValueError, match="declined"):
        once.using(**options).run("7", place)
    for number, verb in enumerate(("release", "park")):
        claim = once.acquire(number)
        claim.send(box.address, "never sent")
        getattr(claim, verb)()
        with pytest.raises(OncewardError, match="ended before"):
            claim.send(box.address, "too late")
    drained()
    assert box.bodies == []
    assert {record.unsent for record, _ in once.ledger.records()} == {None}


def test_a_task_that_a_failed_handler_of_a_batch_left_sends_nothing(once, box):
    class Declined(Exception):
        pass

    async def handle(n, claim: onceward.Claim):
        async def late():
            await failed.wait()
            try:
                claim.send(box.address, "late")
            finally:
                tried.set()

        if n == 1:
            lates.append(asyncio.create_task(late()))
            raise Declined
        failed.set()
        await tried.wait()  # the failure is recorded after that

    async def run():
        nonlocal failed, tried
        failed, tried = asyncio.Event(), asyncio.Event()
        return await once.batch(handle, key="n", name="b", final=(Declined,), concurrency=1).run_async([1, 2])

    failed = tried = None
    lates = []
    assert [outcome.status for outcome in asyncio.run(run())] == ["done", "done"]
    assert "its handler has failed" in str(lates[0].exception())
    drained()
    assert box.bodies == []


def test_the_next_attempt_begins_without_messages(once, box):
    tries = []

    def place():
        tries.append(onceward.current().send(box.address, len(tries)))
        if len(tries) == 1:
            raise ValueError("again")

    with pytest.raises(ValueError, match="again"):
        once.run("7", place)
    once.run("7", place)
    drained()
    assert box.bodies == ["1"]
    assert len(set(tries)) == 1


def test_threads_of_a_handler_can_send(once, box):
    def place():
        claim = onceward.current()
        threads = [threading.Thread(target=claim.send, args=(box.address, n)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    once.run("7", place)
    drained()
    assert sorted(map(int, box.bodies)) == list(range(20))
    assert len({message.key for message in box.target.sent}) == 20


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda claim, box: claim.send("gopher:x", 1), ValueError, "names no target"),
        (lambda claim, box: claim.send(box.address, b"1"), TypeError, "not bytes"),
        (lambda claim, box: claim.send(box.address, object()), TypeError, "cannot be written as JSON"),
        (lambda claim, box: claim.send(box.address, "\udc80"), ValueError, "surrogates"),
        (lambda claim, box: claim.send(box.address, "never"), ValueError, "never takes"),
        (lambda claim, box: claim.send(box.address, "x" * 65536), ValueError, "at most 65536 bytes"),
        (lambda claim, box: claim.send(box.address, 1, delay=-1), ValueError, "delay=-1"),
        (lambda claim, box: claim.send(box.address, 1, headers={"a": 1}), TypeError, "text by name"),
        (lambda claim, box: claim.send(box.address, 1, group=1), TypeError, "group=1"),
        (lambda claim, box: [claim.send(box.address, 1, key="a") for _ in "ab"], ValueError, "have the key 'a'"),
    ],
)
def test_a_wrong_message_is_refused_at_once(once, box, make, error, match):
    with once.claim("7") as claim:
        with pytest.raises(error, match=match):
            make(claim, box)
        claim.send(box.address, "right")
    drained()
    assert "right" in box.bodies


def test_many_messages_together_are_too_large(once, box):
    with once.claim("7") as claim:
        with pytest.raises(ValueError, match="Send a reference to large data"):
            for _ in range(100):
                claim.send(box.address, "x" * 1000)
        sent = claim.outbox.count
    assert len(record_of(once).unsent or "") <= 64 * 1024
    drained()
    assert len(box.bodies) == sent > 50


def test_a_message_that_fails_is_sent_later_and_before_the_next(once, box):
    box.target.answers.extend([MessageNotSent("away"), MessageNotSent("away")])
    with once.claim("7") as claim:
        claim.send(box.address, 1)
        claim.send(box.address, 2)
    until(lambda: len(box.bodies) == 2)
    drained()
    assert box.bodies == ["1", "2"]
    assert record_of(once).unsent is None


def test_a_refused_message_stays_and_the_others_go_on(once, box):
    box.target.answers.append(MessageRefused("no such topic"))
    events = []
    once = Once(MemoryStore(), observe=[events.append])
    with once.claim("7") as claim:
        claim.send(box.address, 1)
        claim.send(box.address, 2)
    drained()
    assert box.bodies == ["2"]
    record = record_of(once)
    (left,) = unsent_of(record.unsent).messages
    assert (left.body, left.refused) == ("1", "MessageRefused: no such topic")
    assert record.due_at > 9e9
    assert record.expires_at is None
    kinds = [event.kind for event in events if event.kind in {"sent", "refused"}]
    assert kinds == ["refused", "sent"]


def test_a_dead_target_delays_no_other(once, box):
    release = threading.Event()

    class Hanging(RecordedTarget):
        def send(self, messages):
            release.wait(60)
            return super().send(messages)

    dead = Box()
    dead.target = Hanging()
    with once.claim("1") as claim:
        claim.send(dead.address, "slow")
    with once.claim("2") as claim:
        claim.send(box.address, "quick")
    until(lambda: box.bodies)
    assert box.bodies == ["quick"]
    assert dead.bodies == []
    release.set()
    drained()
    assert dead.bodies == ["slow"]


def _exit(_):
    raise SystemExit(3)


@pytest.mark.parametrize(
    "send", [lambda _: None, lambda _: [], lambda _: 1 / 0, _exit], ids=["nothing", "too few", "error", "exit"]
)
def test_a_target_that_does_not_answer_as_it_must_is_tried_again(once, box, monkeypatch, send):
    with monkeypatch.context() as patch:
        patch.setattr(box.target, "send", send)
        once.run("7", place(box, 1))
        until(lambda: "tries" in (record_of(once).unsent or ""))
    until(lambda: box.bodies)
    assert box.bodies == ["1"]
    drained()


def test_sealed_messages_are_not_readable_in_the_ledger(box):
    flip = lambda data: bytes(byte ^ 1 for byte in data)
    once = Once(MemoryStore(), seal=(flip, flip))
    seen = []

    class Looking(RecordedTarget):
        def send(self, messages):
            seen.append(record_of(once).unsent)
            return super().send(messages)

    box.target = Looking()
    box.target.answers.extend([None, MessageRefused("400: no such card: secret")])
    with once.claim("7") as claim:
        claim.send(box.address, "secret", headers={"to": "secretary"})
        claim.send(box.address, "secret")
    drained()
    assert box.bodies == ["secret"]
    assert box.target.sent[0].headers["to"] == "secretary"
    assert not [text for text in (*seen, record_of(once).unsent) if "secret" in text]
    assert "MessageRefused: sealed" in record_of(once).unsent


@pytest.mark.parametrize("seal", [lambda _: 1 / 0, lambda _: b"redacted"])
def test_a_message_that_cannot_be_sealed_is_refused(box, seal):
    claim = Once(MemoryStore(), seal=(seal, lambda data: data)).acquire("7")
    with pytest.raises(ValueError, match="sealed and opened again"):
        claim.send(box.address, "secret")
    assert claim.outbox.count == 0


# --- what a crash leaves ------------------------------------------------------------------------------------------------


@pytest.fixture
def crashing(monkeypatch):
    """Within the block, completions are not handed over, as if the process ended right after them."""

    @contextlib.contextmanager
    def crash():
        with monkeypatch.context() as patch:
            patch.setattr("onceward.claim.held.HeldClaim.hand_over", lambda self: None)
            yield

    return crash


def place(box, *bodies):
    def handler():
        for body in bodies:
            onceward.current().send(box.address, body)
        return "placed"

    return handler


def test_a_duplicate_sends_what_a_crash_has_left(box, crashing):
    clock = ManualClock()
    once = Once(MemoryStore(clock), name="n")
    with crashing():
        once.run("7", place(box, 1, 2))
    before = record_of(once)
    assert before.due_at == clock() + 30
    assert once.run("7", place(box)) == "placed"  # not due yet: its worker may be sending
    drained()
    assert box.bodies == []
    clock.advance(30)
    assert once.run("7", place(box)) == "placed"
    drained()
    assert box.bodies == ["1", "2"]
    after = record_of(once)
    assert (after.unsent, after.due_at, after.result) == (None, None, before.result)
    assert after.expires_at == before.lease_until + Policy().retention


@pytest.mark.parametrize("ask", ["batch", "claim", "async", "outcome", "cached"])
def test_every_kind_of_duplicate_sends(box, crashing, ask):
    clock = ManualClock()
    once = Once(MemoryStore(clock), name="n")
    with crashing():
        once.run("7", place(box, 1))
    clock.advance(30)
    if ask == "batch":
        (outcome,) = once.batch(lambda n: n, key="n", name="n").run(["7"])
        assert outcome.status == "replayed"
    elif ask == "claim":
        with pytest.raises(onceward.Completed):
            once.acquire("7", name="n")
    elif ask == "async":
        asyncio.run(once.run_async("7", place(box)))
    elif ask == "outcome":
        assert once.run_outcome("7", place(box)).replayed
    else:
        cached = once.using(cache=10)
        cached.run("7", place(box))
        cached.run("7", place(box))
    drained()
    assert box.bodies == ["1"]


def test_many_duplicates_send_once(box, crashing):
    clock = ManualClock()
    once = Once(MemoryStore(clock), name="n")
    with crashing():
        once.run("7", place(box, *range(5)))
    clock.advance(30)
    threads = [threading.Thread(target=once.run, args=("7", place(box))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drained()
    assert box.bodies == ["0", "1", "2", "3", "4"]


def test_a_sender_that_was_away_for_too_long_takes_its_lease_first(box, monkeypatch):
    once = Once(MemoryStore(), name="n")
    claim = once.acquire("7")
    claim.send(box.address, 1)
    away = [0.0]
    monkeypatch.setattr("onceward.outbox.sending.boottime", lambda: boottime() + away[0])
    with monkeypatch.context() as patch:
        patch.setattr("onceward.outbox.sender.Sender._staff", lambda self: True)  # its threads are stopped
        claim.complete()
    away[0] = 60.0
    before = record_of(once)
    # Meanwhile a relay takes the lease.
    relay = senders.Sender()
    note = SendingRecord(once.store, before, None, UNOBSERVED).note()
    (taken,) = drive(note_many(once.store, [note], boottime, lambda: 0.0), once.store)
    assert isinstance(taken, Won)
    assert senders.SENDER.drain(5) == 0
    assert box.bodies == []
    away[0] = 0.0
    relay.hand_over(SendingRecord(once.store, taken.record, None, UNOBSERVED))
    assert relay.drain(5) == 0
    assert box.bodies == ["1"]


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


def test_a_lost_reply_to_the_completion_sends_once(box):
    store = MemoryStore()
    real, lost = store.exchange, []

    def exchange(request):
        reply = real(request)
        if not lost and reply.record is not None and reply.record.unsent:
            lost.append(reply)
            raise StoreError("its reply is lost", transient=True)
        return reply

    store.exchange = exchange
    Once(store).run("7", place(box, 1, 2))
    drained()
    assert lost
    assert box.bodies == ["1", "2"]


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


def test_a_lost_reply_to_the_strike_out_sends_nothing_again(box):
    store = MemoryStore()
    real, lost = store.exchange, []

    def exchange(request):
        reply = real(request)
        if not lost and box.bodies:
            lost.append(reply)
            raise StoreError("its reply is lost", transient=True)
        return reply

    store.exchange = exchange
    once = Once(store)
    once.run("7", place(box, 1))
    drained()
    assert lost
    assert box.bodies == ["1"]
    assert record_of(once).unsent is None


def test_a_store_that_is_away_for_the_strike_out_sends_again_with_the_same_key(box):
    clock = ManualClock()
    store = MemoryStore(clock)
    real = store.exchange
    away = [True]

    def exchange(request):
        if box.bodies and away[0]:
            raise StoreError("away")
        return real(request)

    store.exchange = exchange
    once = Once(store, name="n")
    once.run("7", place(box, 1))
    until(lambda: not len(senders.SENDER))
    assert box.bodies == ["1"]
    away[0] = False
    assert record_of(once).unsent is not None
    clock.advance(60)
    once.run("7", place(box))
    until(lambda: record_of(once).unsent is None)
    assert box.bodies == ["1", "1"]
    assert len({message.key for message in box.target.sent}) == 1
    assert record_of(once).unsent is None


def test_progress_is_noted_so_that_no_message_is_sent_again(box):
    clock = ManualClock()
    once = Once(MemoryStore(clock), name="n")
    box.target.answers.extend([None, MessageNotSent("away", retry_after=600)])
    once.run("7", place(box, 1, 2))
    for _ in range(500):
        record = record_of(once)
        if record.due_at is not None and record.due_at >= clock() + 600:
            break
        time.sleep(0.01)
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


def test_a_process_that_can_start_no_thread_sends_while_it_drains(once, box, monkeypatch):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        once.run("7", place(box, 1, 2))
        assert box.bodies == []
        drained()
    assert box.bodies == ["1", "2"]


def test_draining_waits_for_no_target_that_has_failed(once, box):
    box.target.answers.append(MessageNotSent("away", retry_after=600))
    once.run("7", place(box, 1))
    assert senders.SENDER.drain(600) == 1
    assert 0 < senders.SENDER.pause_of(box.address) <= 600


# --- in a transaction that is rolled back --------------------------------------------------------------------------------


def test_messages_of_a_rolled_back_transaction_are_forgotten(box, tmp_path):
    once = Once(f"sqlite:///{tmp_path}/l.db")
    connection = sqlite3.connect(f"{tmp_path}/l.db")
    with once.claim("7") as claim:
        claim.send(box.address, "before")
        with contextlib.suppress(ZeroDivisionError), claim.transaction(connection):
            claim.send(box.address, "within")
            raise ZeroDivisionError
        claim.send(box.address, "after")
    drained()
    assert box.bodies == ["before", "after"]


@pytest.mark.parametrize("claimed", [True, False])
def test_messages_leave_with_a_transaction(box, tmp_path, claimed):
    once = Once(f"sqlite:///{tmp_path}/l.db")
    connection = sqlite3.connect(f"{tmp_path}/l.db")
    connection.execute("CREATE TABLE effects (n INTEGER)")
    if claimed:
        with once.claim("7") as claim, claim.transaction(connection):
            connection.execute("INSERT INTO effects VALUES (1)")
            claim.send(box.address, 1)
    else:
        with once.transaction("7", connection) as transaction:
            connection.execute("INSERT INTO effects VALUES (1)")
            onceward.current().send(box.address, 1)
            assert transaction.claim is not None
    drained()
    assert box.bodies == ["1"]
    assert record_of(once).unsent is None


# --- beside steps ------------------------------------------------------------------------------------------------------


def test_a_message_within_a_step_is_refused_for_a_later_attempt_would_not_send_it(once, box):
    def handle():
        claim = onceward.current()
        with pytest.raises(OncewardError, match="step"):
            claim.step("a", claim.send, box.address, 1)
        assert claim.step("b", int) == 0
        claim.send(box.address, 2)

    once.run("7", handle)
    drained()
    assert box.bodies == ["2"]
