"""The dashboard on every store: what the pages find, hostile keys, counts in bounded time, and handlers without a scan."""

import html
import random
import re

import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.views import STATES, Criteria
from onceward.core.writes import ended, first_claim
from onceward.dashboard import dashboard
from onceward.dashboard.needs import RecordQuery
from onceward.stores.sql import store as of_postgres
from onceward.stores.sqlite import inspection as of_sqlite
from servers.needs import numbers
from web.calls import DashboardVisitor

pytestmark = pytest.mark.sampled(every_url=2, small=1)

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


def test_lists_find_each_record_once_and_a_hostile_key_is_unparked_on_every_store(once, ada):
    assert len(keys(ada.get("/records", params={"status": "PARKED", "scan": "1"}))) == 2
    assert keys(ada.get("/records", params={"status": "RELEASED", "scan": "1"})) == ["shop:again"]
    (shown,) = keys(ada.get("/records", params={"prefix": f"raw{HOSTILE[:5]}", "scan": "1"}))
    assert shown.startswith(f"raw{HOSTILE[:5]}")
    assert keys(ada.get("/records", params={"prefix": HOSTILE, "scan": "1"})) == []
    assert ada.get("/search", params={"q": "shop:order-07"}).headers["location"] == "/record?key=shop%3Aorder-07"
    found, path = [], "/records?scan=1"
    while path is not None:
        page = ada.get(path)
        found += keys(page)
        following = re.search(r'rel="next" href="([^"]*)"', page.text)
        path = None if following is None else html.unescape(following[1])
    assert (len(found), len(set(found))) == (73, 73)
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


NAMES = sorted(
    ["a", "a.b", "a-b", "ab", "mail", "shop.charge", "é.ü", "\U0001f600"], key=lambda name: f"{name}:".encode()
)
_NUMBERS = numbers()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def small(request, tmp_path):
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/ledger.db"}.get(request.param)
    made = Once(url or f"{request.getfixturevalue('postgres15').url}?schema=survey_{next(_NUMBERS)}")
    yield made
    made.close()


def write(once, key, status, **more):
    claim = first_claim(key, f"of {key}", None, once.policy)
    made = claim._replace(lease=-5.0) if status == "LAPSED" else claim if status == IN_PROGRESS else None
    made = made or ended(claim, status, "1" if status == COMPLETED else None, None)
    drive(once.store.insert(made._replace(**more)), once.store)


@pytest.fixture
def mixed(small):
    """A ledger with records in all states, in random order."""
    kinds = [COMPLETED] * 40 + [PARKED] * 7 + [RELEASED] * 5 + [IN_PROGRESS] * 3 + ["LAPSED"] * 2
    random.Random(1).shuffle(kinds)
    for number, kind in enumerate(kinds):
        write(small, f"{NAMES[number % len(NAMES)]}:{number}", kind)
    write(small, "a:unsent", COMPLETED, keep=None, unsent="{}", due=60.0)
    write(small, "a:old", COMPLETED, keep=-1.0)  # last: a later write can delete it
    return small


def truth(once):
    """Count each state by reading."""
    return {state: len(list(once.ledger.records(status=state))) for state in STATES}


def test_a_small_ledger_is_counted_exactly(mixed):
    survey = mixed.ledger.survey()
    assert survey.counts == truth(mixed)
    assert (survey.total, survey.exact) == (59, True)


def test_a_large_ledger_tells_what_its_indexes_have(mixed, monkeypatch):
    for module in (of_sqlite, of_postgres):
        monkeypatch.setattr(module, "READ", 10)
    survey, counted = mixed.ledger.survey(), truth(mixed)
    assert {PARKED, RELEASED, "UNSENT", "REFUSED"} <= survey.counts.keys()
    assert {state: counted[state] for state in survey.counts} == survey.counts
    if not survey.exact:
        assert not RecordQuery(Criteria((COMPLETED,)), "", None).is_quick(survey)
        assert RecordQuery(Criteria((PARKED,)), "", None).is_quick(survey)
        assert RecordQuery(Criteria(("UNSENT",)), "", None).is_quick(survey)


def test_a_large_ledger_is_estimated_by_its_survey(mixed, monkeypatch):
    ledger = mixed.ledger
    assert ledger.estimate() is None, "reading it is as fast"
    for module in ("ledger_reader", "sqlite.inspection", "sql.store"):
        monkeypatch.setattr(f"onceward.stores.{module}.READ", 10)
    estimate = ledger.estimate()
    if mixed.store.url.startswith("sqlite:"):
        assert estimate is None, "its indexes do not count what is in progress"
        return
    counts, estimated = estimate
    read = ledger.stats()
    exact = mixed.store.url == "memory:"
    assert estimated == (set() if exact else {"total", COMPLETED})
    known = counts.keys() - estimated
    assert {name: counts[name] for name in known} == {name: read[name] for name in known}
    assert exact or counts["total"] >= 15
