"""The dashboard on every store: what the pages find, and keys that are hostile to HTML, SQL and globs."""

import html
import re

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import PARKED
from onceward.core.writes import ended, first_claim
from onceward.dashboard import dashboard
from web.visitors import DashboardVisitor

pytestmark = pytest.mark.sampled(every_url=2)

TOKEN = "correct horse battery staple"
HOSTILE = "\"'><img src=x onerror=alert(1)>%_[*?\\\u202e\U0010ffff"


@pytest.fixture
def once(every_url):
    made = Once(every_url, name="shop")
    for number in range(70):
        made.acquire(f"order-{number:02}").complete({"n": number})
    made.acquire("broken").park(f"no {HOSTILE}")
    made.acquire("again").release("the bank did not answer")
    claim = first_claim(f"raw{HOSTILE}:k{HOSTILE}", "0" * 32, None, made.policy)
    drive(made.store.insert(ended(claim, PARKED, None, HOSTILE)._replace(keep=None)), made.store)
    yield made
    made.close()


@pytest.fixture
def ada(once):
    made = DashboardVisitor(dashboard(once, allow_actions=True, token=TOKEN))
    made.sign_in(TOKEN)
    return made


def keys(page):
    return [html.unescape(one) for one in re.findall(r'data-name="Key"><a class="key" href="[^"]*">([^<]*)', page.text)]


def test_lists_find_what_is_asked_for_on_every_store(once, ada):
    assert len(keys(ada.get("/records", params={"status": "PARKED", "scan": "1"}))) == 2
    assert keys(ada.get("/records", params={"status": "RELEASED", "scan": "1"})) == ["shop:again"]
    (shown,) = keys(ada.get("/records", params={"prefix": f"raw{HOSTILE[:5]}", "scan": "1"}))
    assert shown.startswith(f"raw{HOSTILE[:5]}")
    assert keys(ada.get("/records", params={"prefix": HOSTILE, "scan": "1"})) == []
    assert keys(ada.get("/search", params={"q": "shop:order-07"})) == ["shop:order-07"]


def test_a_list_of_all_has_each_record_once_on_every_store(once, ada):
    found, path = [], "/records?scan=1"
    while path is not None:
        page = ada.get(path)
        found += keys(page)
        following = re.search(r'rel="next" href="([^"]*)"', page.text)
        path = None if following is None else html.unescape(following[1])
    assert (len(found), len(set(found))) == (73, 73)


def test_a_hostile_key_is_unparked_on_every_store(once, ada):
    key = f"raw{HOSTILE}:k{HOSTILE}"
    fields = {
        name: html.unescape(value) for name, value in ada.form("/act", params={"action": "unpark", "key": key}).items()
    }
    assert ada.post("/act", {**fields, "why": HOSTILE}).status_code == 303
    assert once.ledger.show(key)[0].status == "RELEASED"
    page = ada.get("/record", params={"key": key})
    assert "What people did" in page.text
    assert "<img" not in page.text
    assert "\u202e" not in page.text


def test_a_hostile_text_in_place_of_a_trace_stays_text():
    once = Once("memory:", name="shop")
    once.acquire("order-7").release("no")
    record = once.store.records["shop:order-7"]
    text = record.history.replace(',"fence"', ',"trace":"<img src=x onerror=alert(1)>","fence"')
    once.store.records[record.key] = record._replace(history=text)
    page = DashboardVisitor(dashboard(once)).get("/record", params={"key": record.key})
    assert "&lt;img src=x onerror=alert(1)&gt;" in page.text
    assert "<img" not in page.text
