"""The pages of the dashboard that read, without a browser and on a ledger in memory."""

import inspect
import re

import msgspec
import pytest

from onceward import Once
from onceward.cli.dashboard import VARIABLE
from onceward.cli.dashboard import dashboard as command
from onceward.core.drivers import drive
from onceward.core.outbox_writes import NEVER_DUE
from onceward.core.record import COMPLETED, PARKED
from onceward.core.writes import ended, first_claim
from onceward.dashboard import dashboard
from onceward.dashboard.actions import ACTIONS
from onceward.dashboard.asking import Sampler
from onceward.errors import StoreError
from onceward.results.message_entries import MessageEntry, Unsent
from onceward.stores.audit import Deed, begin
from onceward.testing.clock import ManualClock
from places import DOCS
from web.visitors import DashboardVisitor

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


def test_a_record_is_found_by_what_somebody_has_of_it(client):
    for text in ("shop.charge:order-7", "order-7", "shop.charge:ord"):
        assert "/record?key=shop.charge%3Aorder-7" in client.get("/search", params={"q": text}).text


def test_a_record_tells_its_story(once, client):
    once.acquire("order-8").park("x" * 900)
    told = client.get("/record", params={"key": "shop.charge:order-7"}).text
    assert "CardDeclined: no such account" in told
    assert "unpark it: the next delivery runs" in told
    told = client.get("/record", params={"key": "shop.charge:order-8"}).text
    for text in ("the bank did not answer", "xxx", ">released<", ">parked<"):
        assert text in told  # of each attempt
    assert client.get("/record.json", params={"key": "shop.charge:order-7"}).json()["status"] == "PARKED"
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
    entries = [
        MessageEntry("sqs:mails", "k1", '{"order": 7}', tries=2),
        MessageEntry("sns:arn:gone", "k2", "hi", refused="NotFound: no such topic"),
    ]
    claim = ended(first_claim(key, "o", None, once.policy), COMPLETED, "1", None)
    origin = msgspec.json.encode({"root": "shop.order:1", "parent": "shop.charge:order-7"}).decode()
    unsent = Unsent("o", None, entries).text
    claim = claim._replace(keep=None, unsent=unsent, lease=min(due, 0.0), due=due, origin=origin)
    drive(once.store.insert(claim), once.store)


def test_messages_that_nobody_sends_are_told(once, client):
    completed_with_messages(once, "shop.mail:late", -600.0)
    completed_with_messages(once, "shop.ship:soon", 20.0)
    told = client.get("/").text
    assert "no relay runs" in told
    assert "shop.mail" in told
    assert "shop.ship" not in told
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
    for path, query in (("/", {}), ("/records", {}), ("/record", {"key": HOSTILE}), ("/search", {"q": HOSTILE})):
        told = client.get(path, params=query).text
        assert "alert(" in told
        assert "<script>" not in told
        assert "<img" not in told
        assert not {"\x1b", "\x07", "\u202e"} & set(told)


def test_a_ledger_without_an_index_is_not_read_unasked_nor_for_a_page_of_another_site(once, monkeypatch):
    monkeypatch.setattr(type(once.store), "capabilities", {})
    client = DashboardVisitor(dashboard(once))
    for path in ("/", "/records?status=PARKED", "/records?prefix=shop", "/audit", "/handlers"):
        told = client.get(path).text
        assert "order-7" not in told
    assert "order-7" in client.get("/records?status=PARKED&scan=1").text
    elsewhere = DashboardVisitor(dashboard(once), headers={"sec-fetch-site": "cross-site"})
    for path in ("/records?status=PARKED&scan=1", "/audit?scan=1"):
        assert "This reads the ledger" in elsewhere.get(path).text


def test_what_is_missing_is_said(client):
    for path, status in (("/record?key=none", 404), ("/nothing", 404), ("/records?status=DONE", 400), ("/?x", 200)):
        assert client.get(path).status_code == status
    answer = client.send("HEAD", "/live")  # it ends at once
    assert (answer.status_code, answer.text) == (200, "")
    assert answer.headers["content-type"].startswith("text/event-stream")


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


def test_every_option_and_action_is_documented():
    names = {"allow_actions", "hide_results", *inspect.signature(command).parameters}
    assert [name for name in names if f"--{name.replace('_', '-')}" not in TEXT] == []
    told = {row.strip() for row in re.findall(r"^\| ([a-z ]+) \|", TEXT, re.MULTILINE)}
    buttons = {"send": "send the kept message", "resend": "send refused messages", "drop": "forget refused messages"}
    assert {(buttons | {"retry": "retry from a step"}).get(name, name) for name in ACTIONS} - told == set()
    assert VARIABLE in TEXT


def test_a_kept_message_that_somebody_has_changed_is_shown_as_it_is(once, client):
    once.acquire("changed").park("poison")
    record = once.store.records["shop.charge:changed"]
    text = '{"message":{"id":5,"queue":"q","group":null,"body":["b"],"attributes":{}}}'
    once.store.records[record.key] = record._replace(result=text)
    answer = client.get("/record?key=shop.charge:changed")
    assert (answer.status_code, "The message that it keeps" in answer.text) == (200, True)


def test_handlers_come_by_name_or_the_slowest_first(once, client):
    once.using(name="a.mail").acquire("1").complete(1)
    record = once.store.records["shop.charge:order-0"]
    once.store.records[record.key] = record._replace(created_at=record.created_at - 100)
    for sort, order in (("name", ["a.mail", "shop.charge"]), ("slowest", ["shop.charge", "a.mail"])):
        told = client.get("/handlers", params={"sort": sort}).text
        assert re.findall(r'class="key" href="[^"]*">([^<]*)', told) == order


def test_a_ledger_that_is_away_is_asked_once_however_many_wait():
    asked = []

    class Away:
        def survey(self):
            asked.append(1)
            raise StoreError("away")

    sampler = Sampler(Away(), ManualClock(100.0))
    for _ in range(8):
        with pytest.raises(StoreError, match="away"):
            sampler.latest()
    assert len(asked) == 1


def test_an_audit_that_is_cut_says_so_before_its_entries(once, monkeypatch):
    monkeypatch.setattr("onceward.dashboard.pages._ENTRIES", 5)
    for n in range(6):
        begin(once.ledger, Deed(f"k:{n}", "park", "ada", "why", "before"))
    first = DashboardVisitor(dashboard(once)).get("/audit").text
    assert 0 < first.index("part of the audit") < first.index("k:0")
