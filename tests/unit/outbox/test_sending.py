"""Messages that leave with a completion: which are sent, when, in which order, and what is left in the ledger."""

import contextlib
import sqlite3
import threading

import pytest

import onceward
from onceward import Once, OncewardError
from onceward.core.policy import Policy
from onceward.outbox import MessageNotSent, MessageRefused
from onceward.results.message_entries import unsent_of
from onceward.stores.memory import MemoryStore
from queues.boxes import Box, RecordedTarget, drained, place, record_of
from waiting import until

pytestmark = pytest.mark.usefixtures("quick")


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


def test_a_failed_handler_of_a_batch_sends_nothing_before_its_failure_is_recorded(once, box):
    claims = []

    def handle(n, claim: onceward.Claim):
        claims.append(claim)
        if n == 1:
            raise ValueError
        with pytest.raises(OncewardError, match=r"its handler has failed|was ended before"):
            claims[0].send(box.address, "late")  # the failure is recorded after that, unless the machine is slow

    outcomes = once.batch(handle, key="n", name="b", final=(ValueError,), concurrency=1).run([1, 2])
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
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


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda claim, box: claim.send("gopher:x", 1), ValueError, "names no target"),
        (lambda claim, box: claim.send(box.address, b"1"), TypeError, "not bytes"),
        (lambda claim, box: claim.send(box.address, "never"), ValueError, "never takes"),
        (lambda claim, box: claim.send(box.address, "x" * 65536), ValueError, "at most 65536 bytes"),
        (lambda claim, box: claim.send(box.address, 1, delay=-1), ValueError, "delay=-1"),
        (lambda claim, box: claim.send(box.address, 1, headers={"a": 1}), TypeError, "text by name"),
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
    once.run("7", place(box, 1, 2))
    until(lambda: len(box.bodies) == 2)
    drained()
    assert box.bodies == ["1", "2"]
    assert record_of(once).unsent is None


def test_a_refused_message_stays_and_the_others_go_on(once, box):
    box.target.answers.append(MessageRefused("no such topic"))
    events = []
    once = Once(MemoryStore(), observe=[events.append])
    once.run("7", place(box, 1, 2))
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
    release, dead = threading.Event(), Box()
    send, dead.target.send = dead.target.send, lambda messages: release.wait(60) and send(messages)
    with once.claim("1") as claim:
        claim.send(dead.address, "slow")
    once.run("2", place(box, "quick"))
    until(lambda: box.bodies)
    assert box.bodies == ["quick"]
    assert dead.bodies == []
    release.set()
    drained()
    assert dead.bodies == ["slow"]


def _exit(_):
    raise SystemExit(3)


@pytest.mark.parametrize("send", [lambda _: [], lambda _: 1 / 0, _exit], ids=["too few", "error", "exit"])
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


@pytest.mark.parametrize("seal", [lambda _: 1 / 0, lambda _: b"redacted"])
def test_a_message_that_cannot_be_sealed_is_refused(box, seal):
    claim = Once(MemoryStore(), seal=(seal, lambda data: data)).acquire("7")
    with pytest.raises(ValueError, match="sealed and opened again"):
        claim.send(box.address, "secret")
    assert claim.outbox.count == 0
