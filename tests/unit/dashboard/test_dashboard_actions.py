"""What visitors do to records: each action is previewed, confirmed, applied to what was seen, and audited."""

import msgspec
import pytest

from onceward import Once
from onceward.core import drivers, outbox_writes, writes
from onceward.core.record import COMPLETED, PARKED
from onceward.dashboard import dashboard
from onceward.errors import StoreError
from onceward.results.message_entries import MessageEntry, Unsent, unsent_of
from onceward.stores.audit import NAMESPACE, Deed, begin, entries_of
from web.visitors import DashboardVisitor

pytestmark = pytest.mark.slow

TOKEN = "correct horse battery staple"


@pytest.fixture
def once():
    return Once("memory:", name="shop")


@pytest.fixture
def ada(once):
    made = DashboardVisitor(dashboard(once, allow_actions=True, token=TOKEN))
    made.sign_in(TOKEN)
    return made


def do(visitor, action, key, why="because", **more):
    fields = visitor.form("/act", params={"action": action, "key": key})
    return visitor.post("/act", {**fields, "why": why, **more})


def status(once, key):
    return once.ledger.show(key)[0].status


def audits(once):
    return [record for record, _ in once.ledger.records(f"{NAMESPACE}:")]


def test_unparking_lets_the_next_delivery_run(once, ada):
    once.acquire("a").release("first try")
    assert do(ada, "park", "shop:a", detail="the bank is closed").status_code == 303
    assert once.ledger.show("shop:a")[0].error == "the bank is closed"
    assert "The next delivery of this key runs" in ada.get("/act?action=unpark&key=shop:a").text
    assert do(ada, "unpark", "shop:a", "the account is open").status_code == 303
    assert once.run("a", lambda: "charged") == "charged"
    told = ada.get("/record?key=shop:a").text
    for text in ("unpark", "Ada (by token)", "the account is open", "unparked: the next delivery runs"):
        assert text in told


def test_clearing_forgets_the_record_but_not_who_did_it(once, ada):
    once.acquire("a").complete(1)
    do(ada, "clear", "shop:a", "charged back by hand")
    answer = ada.get("/record?key=shop:a")
    assert answer.status_code == 404
    assert "charged back by hand" in answer.text
    assert once.run("a", lambda: 2) == 2


def test_a_live_key_is_cleared_only_by_who_accepts_it(once, ada):
    once.acquire("a")
    assert "result will be refused" in ada.get("/act?action=clear&key=shop:a").text
    assert do(ada, "clear", "shop:a").status_code == 409
    assert status(once, "shop:a") == "IN_PROGRESS"
    assert do(ada, "clear", "shop:a", accept="yes").status_code == 303


def completed_with(once, key, *messages, due):
    claim = writes.ended(writes.first_claim(key, f"of {key}", None, once.policy), COMPLETED, "1", None)
    unsent = Unsent("o", None, list(messages)).text
    drivers.drive(once.store.insert(claim._replace(keep=None, unsent=unsent, due=due)), once.store)


def test_unsent_messages_are_lost_only_by_who_accepts_it(once, ada):
    completed_with(once, "shop:a", MessageEntry("sqs:mails", "k", "hello"), due=60.0)
    assert "They will be lost" in ada.get("/act?action=clear&key=shop:a").text
    assert do(ada, "clear", "shop:a").status_code == 409
    assert status(once, "shop:a") == "COMPLETED"
    assert do(ada, "clear", "shop:a", accept="yes").status_code == 303
    assert ada.get("/record?key=shop:a").status_code == 404


def test_refused_messages_are_sent_again_or_forgotten(once, ada):
    refused = (
        MessageEntry("sqs:mails", "k", "hello", refused="NotFound"),
        MessageEntry("sqs:gone", "m", "x", refused="No"),
    )
    for key in ("shop:a", "shop:b"):
        completed_with(once, key, *refused, due=outbox_writes.NEVER_DUE)
    assert do(ada, "resend", "shop:a").status_code == 303
    again = unsent_of(once.ledger.show("shop:a")[0].unsent).messages
    assert [(one.key, one.refused) for one in again] == [("k", None), ("m", None)]
    assert do(ada, "drop", "shop:b").status_code == 409
    assert do(ada, "drop", "shop:b", accept="yes").status_code == 303
    assert once.ledger.show("shop:b")[0].unsent is None
    assert "2 message(s) were forgotten" in ada.get("/record?key=shop:b").text


def test_the_password_of_an_address_gets_into_no_audit(once, ada):
    claim = writes.first_claim("shop:a", "0" * 32, None, once.policy)
    kept = '{"message":{"id":"m-1","queue":"orders","headers":{},"body":""}}'
    drivers.drive(once.store.insert(writes.ended(claim, PARKED, kept, "poison")._replace(keep=None)), once.store)
    answer = do(ada, "send", "shop:a", detail="amqp://guest:secret@broker/shop?queue=orders")
    assert (answer.status_code, audits(once), status(once, "shop:a")) == (409, [], PARKED)
    assert "Leave out the user and the password" in answer.text


def test_retrying_from_a_step_makes_it_again(once, ada):
    made = []

    def steps():
        with once.claim("a", lease=5) as claim:
            claim.step("pay", lambda: made.append("pay"))
            claim.step("mail", lambda: made.append("mail"))

    steps()
    assert do(ada, "retry", "shop:a", detail="mail").status_code == 303
    steps()
    assert made == ["pay", "mail", "mail"]
    assert do(ada, "retry", "shop:a", detail="none").status_code == 409


def test_a_record_that_has_changed_since_is_left_alone(once, ada):
    once.acquire("a").park("x")
    fields = ada.form("/act?action=unpark&key=shop:a")
    once.ledger.unpark("shop:a")
    once.acquire("a").park("for another reason")
    answer = ada.post("/act", {**fields, "why": "because"})
    assert answer.status_code == 409
    assert "for another reason" in answer.text
    assert (status(once, "shop:a"), audits(once)) == ("PARKED", [])


def test_an_action_that_means_nothing_or_has_no_reason_is_not_done(once, ada):
    once.acquire("a").park("x")
    assert do(ada, "unpark", "shop:a", why=" ").status_code == 409
    assert "means nothing" in ada.get("/act?action=park&key=shop:a").text
    assert ada.get("/act?action=explode&key=shop:a").status_code == 404
    assert ada.get("/act?action=clear&key=shop:none").status_code == 404
    filled = {"action": "clear", "key": "shop:a", "detail": "of somebody else", "why": "of somebody else"}
    assert "of somebody else" not in ada.get("/act", params=filled).text  # a link fills in nothing
    assert (status(once, "shop:a"), audits(once)) == ("PARKED", [])


def test_the_audit_is_written_first_and_says_when_nobody_knows_the_end(once, ada, monkeypatch):
    once.acquire("a").park("x")
    fields = ada.form("/act?action=unpark&key=shop:a")

    def away(*_):
        raise StoreError("the ledger is away")

    for verb, told, entries in (("insert", "", 0), ("swap", "may have been done", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(once.store, verb, away)
            answer = ada.post("/act", {**fields, "why": "because"})
        assert (answer.status_code, told in answer.text) == (503, True)
        assert (status(once, "shop:a"), len(audits(once))) == ("PARKED", entries)
    assert msgspec.json.decode(audits(once)[0].result)["action"] == "unpark"
    assert "How it ended is not known" in ada.get("/record?key=shop:a").text


def test_audit_entries_are_final_and_take_no_action(once, ada):
    for _ in range(3):
        once.acquire("a").park("x")
        do(ada, "unpark", "shop:a")
    found = audits(once)
    assert len(found) == 6
    assert {(record.status, record.expires_at) for record in found} == {("COMPLETED", None)}
    told = ada.get("/audit").text
    assert told.count("<b>unpark</b>") == 3
    for record in found:
        assert "means nothing" in ada.get("/act", params={"action": "clear", "key": record.key}).text
    assert once.ledger.purge() == 0


def test_the_latest_entries_are_shown_however_many_there_are(once):
    for number in range(1, 206):
        entry = begin(once.ledger, Deed("shop:k", "park", "Ada", f"the {number}th", "RELEASED"))
        assert entry.endswith(f":{number}")
    shown = [one.deed.why for one in entries_of(once.ledger, "shop:k")]
    assert shown == [f"the {number}th" for number in range(205, 5, -1)]
