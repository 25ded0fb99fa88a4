"""The pages of the dashboard that read, and what visitors do to records: previewed, confirmed, applied to what was seen, and audited."""

import re

import msgspec
import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.outbox_writes import NEVER_DUE
from onceward.core.record import COMPLETED, PARKED
from onceward.core.writes import ended, first_claim
from onceward.dashboard import dashboard
from onceward.dashboard.actions import ACTIONS
from onceward.errors import StoreError
from onceward.results.message_entries import MessageEntry, Unsent
from onceward.stores.audit import NAMESPACE, Deed, begin, entries_of
from places import DOCS
from web.calls import DashboardVisitor

pytestmark = pytest.mark.slow


@pytest.fixture
def once():
    made = Once("memory:", name="shop.charge")
    for number in range(3):
        made.acquire(f"order-{number}").complete({"receipt": number})
    made.acquire("order-7").park("CardDeclined: no such account")
    made.acquire("order-8").release("the bank did not answer")
    made.acquire("order-9")
    return made


@pytest.fixture
def client(once):
    return DashboardVisitor(dashboard(once))


def test_the_overview_says_what_is_parked_and_why(once, client):
    completed_with_messages(once, "shop.mail:refused", NEVER_DUE)
    told = client.get("/").text
    for text in ('data-count="PARKED">1<', 'data-count="IN_PROGRESS">1<', "CardDeclined: no such account"):
        assert text in told
    assert 'data-count="REFUSED">1<' in told
    assert "NotFound: no such topic" in told
    assert "a person must look" in client.get("/record?key=shop.mail:refused").text
    listed = client.get("/records?status=PARKED").text
    assert ("shop.charge:order-7" in listed, "shop.charge:order-1" in listed) == (True, False)


def test_a_search_leads_to_a_record_or_to_the_keys_that_begin_so(client):
    for text, place in (("order-7", "/record?key="), ("ord", "/records?prefix=")):
        answer = client.get("/search", params={"q": f"shop.charge:{text}"})
        assert answer.headers["location"] == f"{place}shop.charge%3A{text}"


def test_a_record_tells_its_story(once, client):
    once.acquire("order-8").park("x" * 900)
    told = client.get("/record", params={"key": "shop.charge:order-7"}).text
    assert "CardDeclined: no such account" in told
    assert "lets its next delivery run" in told
    told = client.get("/record", params={"key": "shop.charge:order-8"}).text
    for text in ("the bank did not answer", "xxx", ">released<", ">parked<"):
        assert text in told  # of each attempt
    assert client.get("/record.json", params={"key": "shop.charge:order-7"}).json()["status"] == "PARKED"
    once.using(on_lapse="park").acquire("waits")
    assert ">never<" in client.get("/record?key=shop.charge:waits").text
    once.acquire("long").complete("x" * 200_000)
    assert len(client.get("/record?key=shop.charge:long").content) < 50_000  # it is cut, and there as JSON
    assert "x" * 200_000 in client.get("/record.json?key=shop.charge:long").json()["result"]


def test_results_can_be_hidden(once):
    client = DashboardVisitor(dashboard(once, hide_results=True))
    for path in ("/records", "/record?key=shop.charge:order-2", "/record.json?key=shop.charge:order-2"):
        told = client.get(path).text
        assert "receipt" not in told
        assert "hidden" in told


def completed_with_messages(once, key, due):
    late = MessageEntry("sqs:mails", "k1", '{"order": 7}', tries=2)
    gone = MessageEntry("sns:arn:gone", "k2", "hi", refused="NotFound: no such topic")
    origin = msgspec.json.encode({"root": "shop.order:1", "parent": "shop.charge:order-7"}).decode()
    completed_with(once, key, late, gone, due=due, lease=min(due, 0.0), origin=origin)


def test_messages_that_nobody_sends_are_told(once, client):
    completed_with_messages(once, "shop.mail:late", -600.0)
    completed_with_messages(once, "shop.ship:soon", 20.0)
    assert 'data-count="UNSENT">2<' in client.get("/").text
    story = client.get("/record?key=shop.mail:late").text
    for text in ("sqs:mails", "tried 2 times", "NotFound: no such topic", "They are due since", "shop.order:1"):
        assert text in story
    assert "others may from" in client.get("/record?key=shop.ship:soon").text
    hiding = DashboardVisitor(dashboard(once, hide_results=True))
    for path in ("/record", "/record.json"):
        assert "order&#34;: 7" not in hiding.get(f"{path}?key=shop.mail:late").text
        assert "hidden" in hiding.get(f"{path}?key=shop.mail:late").text


HOSTILE = "<script>alert(1)</script>\x1b]0;owned\x07\u202e\"'&"


def test_hostile_text_stays_text(once, client):
    claim = first_claim(HOSTILE, "somebody", None, once.policy)  # other programs may write keys of any form
    drive(once.store.insert(ended(claim, PARKED, None, f"<img src=x onerror=alert(1)>{HOSTILE}")), once.store)
    for path, query in (("/", {}), ("/records", {}), ("/record", {"key": HOSTILE})):
        told = client.get(path, params=query).text
        assert "alert(" in told
        assert "<script>" not in told
        assert "<img" not in told
        assert not {"\x1b", "\x07", "\u202e"} & set(told)


def test_a_ledger_without_an_index_is_not_read_unasked_nor_for_a_page_of_another_site(once, monkeypatch):
    monkeypatch.setattr(type(once.store), "capabilities", {})
    client = DashboardVisitor(dashboard(once))
    for path in ("/", "/records?status=PARKED", "/records?prefix=shop", "/audit"):
        told = client.get(path).text
        assert "order-7" not in told
    assert "order-7" in client.get("/records?status=PARKED&scan=1").text
    elsewhere = DashboardVisitor(dashboard(once), headers={"sec-fetch-site": "cross-site"})
    for path in ("/records?status=PARKED&scan=1", "/audit?scan=1"):
        assert "This reads the ledger" in elsewhere.get(path).text


def test_what_is_missing_is_said(client):
    for path, status in (("/record?key=none", 404), ("/nothing", 404), ("/records?status=DONE", 400), ("/?x", 200)):
        assert client.get(path).status_code == status


@pytest.mark.parametrize(
    ("transient", "status", "title"), [(True, 503, "The ledger is away"), (False, 502, "The ledger refuses this")]
)
def test_only_a_ledger_that_may_come_back_is_asked_again(once, client, monkeypatch, transient, status, title):
    def fails(_):
        raise StoreError("no such table", transient=transient)

    monkeypatch.setattr(once.store, "load", fails)
    answer = client.get("/record?key=shop.charge:order-7")
    assert (answer.status_code, "Refresh" in answer.headers) == (status, transient)
    assert title in answer.text
    assert "no such table" in answer.text


def test_nothing_is_loaded_from_elsewhere(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http:" not in answer.text
    assert "https:" not in answer.text
    assert "style=" not in answer.text
    assert answer.text.count("<script") == answer.text.count('<script src="/static/')


TEXT = (DOCS / "how-to" / "dashboard.md").read_text(encoding="utf-8")


def test_every_action_is_documented():
    told = {row.strip() for row in re.findall(r"^\| ([a-z ]+) \|", TEXT, re.MULTILINE)}
    buttons = {"send": "send the kept message", "retry": "retry from a step"}
    assert {buttons.get(name, name) for name in ACTIONS} - told == set()


def test_a_kept_message_that_somebody_has_changed_is_shown_as_it_is(once, client):
    once.acquire("changed").park("poison")
    record = once.store.records["shop.charge:changed"]
    text = '{"message":{"id":5,"queue":"q","group":null,"body":["b"],"attributes":{}}}'
    once.store.records[record.key] = record._replace(result=text)
    answer = client.get("/record?key=shop.charge:changed")
    assert (answer.status_code, "The message that it keeps" in answer.text) == (200, True)


def test_an_audit_that_is_cut_says_so_before_its_entries(once, monkeypatch):
    monkeypatch.setattr("onceward.dashboard.pages._ENTRIES", 5)
    for n in range(6):
        begin(once.ledger, Deed(f"k:{n}", "park", "ada", "why", "before"))
    first = DashboardVisitor(dashboard(once)).get("/audit").text
    assert 0 < first.index("part of the audit") < first.index("k:0")


TOKEN = "correct horse battery staple"


@pytest.fixture
def shop():
    return Once("memory:", name="shop")


@pytest.fixture
def ada(shop):
    made = DashboardVisitor(dashboard(shop, allow_actions=True, token=TOKEN))
    made.sign_in(TOKEN)
    return made


def do(visitor, action, key, why="because", **more):
    fields = visitor.form("/act", params={"action": action, "key": key})
    return visitor.post("/act", {**fields, "why": why, **more})


def status(shop, key):
    return shop.ledger.show(key)[0].status


def audits(shop):
    return [record for record, _ in shop.ledger.records(f"{NAMESPACE}:")]


def test_unparking_lets_the_next_delivery_run(shop, ada):
    shop.acquire("a").release("first try")
    assert do(ada, "park", "shop:a", detail="the bank is closed").status_code == 303
    assert shop.ledger.show("shop:a")[0].error == "the bank is closed"
    assert "The next delivery of this key runs" in ada.get("/act?action=unpark&key=shop:a").text
    assert do(ada, "unpark", "shop:a", "the account is open").status_code == 303
    assert shop.run("a", lambda: "charged") == "charged"
    told = ada.get("/record?key=shop:a").text
    for text in ("unpark", "Ada (by token)", "the account is open", "unparked: the next delivery runs"):
        assert text in told


def test_clearing_forgets_the_record_but_not_who_did_it(shop, ada):
    shop.acquire("a").complete(1)
    do(ada, "clear", "shop:a", "charged back by hand")
    answer = ada.get("/record?key=shop:a")
    assert answer.status_code == 404
    assert "charged back by hand" in answer.text
    assert shop.run("a", lambda: 2) == 2


def test_a_live_key_is_cleared_only_by_who_accepts_it(shop, ada):
    shop.acquire("a")
    assert "result will be refused" in ada.get("/act?action=clear&key=shop:a").text
    assert do(ada, "clear", "shop:a").status_code == 409
    assert status(shop, "shop:a") == "IN_PROGRESS"
    assert do(ada, "clear", "shop:a", accept="yes").status_code == 303


def completed_with(shop, key, *messages, due, **more):
    claim = ended(first_claim(key, f"of {key}", None, shop.policy), COMPLETED, "1", None)
    unsent = Unsent("o", None, list(messages)).text
    drive(shop.store.insert(claim._replace(keep=None, unsent=unsent, due=due, **more)), shop.store)


def test_unsent_messages_are_lost_only_by_who_accepts_it(shop, ada):
    completed_with(shop, "shop:a", MessageEntry("sqs:mails", "k", "hello"), due=60.0)
    assert "They will be lost" in ada.get("/act?action=clear&key=shop:a").text
    assert do(ada, "clear", "shop:a").status_code == 409
    assert status(shop, "shop:a") == "COMPLETED"
    assert do(ada, "clear", "shop:a", accept="yes").status_code == 303
    assert ada.get("/record?key=shop:a").status_code == 404


def test_the_password_of_an_address_gets_into_no_audit(shop, ada):
    claim = first_claim("shop:a", "0" * 32, None, shop.policy)
    kept = '{"message":{"id":"m-1","queue":"orders","headers":{},"body":""}}'
    drive(shop.store.insert(ended(claim, PARKED, kept, "poison")._replace(keep=None)), shop.store)
    answer = do(ada, "send", "shop:a", detail="amqp://guest:secret@broker/shop?queue=orders")
    assert (answer.status_code, audits(shop), status(shop, "shop:a")) == (409, [], PARKED)
    assert "Leave out the user and the password" in answer.text


def test_retrying_from_a_step_makes_it_again(shop, ada):
    made = []

    def steps():
        with shop.claim("a", lease=5) as claim:
            claim.step("pay", lambda: made.append("pay"))
            claim.step("mail", lambda: made.append("mail"))

    steps()
    assert do(ada, "retry", "shop:a", detail="mail").status_code == 303
    steps()
    assert made == ["pay", "mail", "mail"]
    assert do(ada, "retry", "shop:a", detail="none").status_code == 409


def test_a_record_that_has_changed_since_is_left_alone(shop, ada):
    shop.acquire("a").park("x")
    fields = ada.form("/act?action=unpark&key=shop:a")
    shop.ledger.unpark("shop:a")
    shop.acquire("a").park("for another reason")
    answer = ada.post("/act", {**fields, "why": "because"})
    assert answer.status_code == 409
    assert "for another reason" in answer.text
    assert (status(shop, "shop:a"), audits(shop)) == ("PARKED", [])


def test_an_action_that_means_nothing_or_has_no_reason_is_not_done(shop, ada):
    shop.acquire("a").park("x")
    assert do(ada, "unpark", "shop:a", why=" ").status_code == 409
    assert "means nothing" in ada.get("/act?action=park&key=shop:a").text
    assert ada.get("/act?action=explode&key=shop:a").status_code == 404
    assert ada.get("/act?action=clear&key=shop:none").status_code == 404
    filled = {"action": "clear", "key": "shop:a", "detail": "of somebody else", "why": "of somebody else"}
    assert "of somebody else" not in ada.get("/act", params=filled).text  # a link fills in nothing
    assert (status(shop, "shop:a"), audits(shop)) == ("PARKED", [])


def test_the_audit_is_written_first_and_says_when_nobody_knows_the_end(shop, ada, monkeypatch):
    shop.acquire("a").park("x")
    fields = ada.form("/act?action=unpark&key=shop:a")

    def away(*_):
        raise StoreError("the ledger is away")

    for verb, told, entries in (("insert", "", 0), ("swap", "may have been done", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(shop.store, verb, away)
            answer = ada.post("/act", {**fields, "why": "because"})
        assert (answer.status_code, told in answer.text) == (503, True)
        assert (status(shop, "shop:a"), len(audits(shop))) == ("PARKED", entries)
    assert msgspec.json.decode(audits(shop)[0].result)["action"] == "unpark"
    assert "How it ended is not known" in ada.get("/record?key=shop:a").text


def test_audit_entries_are_final_and_take_no_action(shop, ada):
    for _ in range(3):
        shop.acquire("a").park("x")
        do(ada, "unpark", "shop:a")
    found = audits(shop)
    assert len(found) == 6
    assert {(record.status, record.expires_at) for record in found} == {("COMPLETED", None)}
    told = ada.get("/audit").text
    assert told.count("<b>unpark</b>") == 3
    for record in found:
        assert "means nothing" in ada.get("/act", params={"action": "clear", "key": record.key}).text
    assert shop.ledger.purge() == 0


def test_the_latest_entries_are_shown_however_many_there_are(shop):
    for number in range(1, 206):
        entry = begin(shop.ledger, Deed("shop:k", "park", "Ada", f"the {number}th", "RELEASED"))
        assert entry.endswith(f":{number}")
    shown = [one.deed.why for one in entries_of(shop.ledger, "shop:k")]
    assert shown == [f"the {number}th" for number in range(205, 5, -1)]
