"""Who may look at a dashboard, and who may act: tokens, forms, proxies, other sites and other names."""

import base64

import pytest

from onceward import Once
from onceward.dashboard import dashboard
from tables import each
from web.calls import DashboardVisitor

pytestmark = pytest.mark.slow

TOKEN = "correct horse battery staple"
KEY = "shop.charge:order-7"


@pytest.fixture
def once():
    made = Once("memory:", name="shop.charge")
    made.acquire("order-7").park("CardDeclined")
    return made


@pytest.fixture
def app(once):
    return dashboard(once, allow_actions=True, token=TOKEN)


@pytest.fixture
def ada(app):
    made = DashboardVisitor(app)
    made.sign_in(TOKEN)
    return made


def unparking(visitor, **changes):
    fields = visitor.form(f"/act?action=unpark&key={KEY}")
    return {**fields, "why": "the card is valid again", **changes}


def status(once):
    return once.ledger.show(KEY)[0].status


@each(
    ("settings", "told"),
    [
        ({"allow_actions": True}, "give a token, or the identity header"),
        ({"token": "short"}, "too short"),
        ({"identity_header": "X-User"}, "anybody could send that header"),
    ],
)
def test_settings_that_are_not_safe_are_refused(once, settings, told):
    with pytest.raises(ValueError, match=told):
        dashboard(once, **settings)


def test_without_a_token_everybody_reads_and_nobody_acts(once):
    visitor = DashboardVisitor(dashboard(once))
    assert visitor.get(f"/record?key={KEY}").status_code == 200
    assert "/act?" not in visitor.get(f"/record?key={KEY}").text
    assert visitor.get(f"/act?action=unpark&key={KEY}").status_code == 403
    assert visitor.post("/act", {"action": "unpark", "key": KEY, "why": "x"}).status_code == 403
    assert status(once) == "PARKED"


def test_a_page_of_another_name_is_refused(once):
    app = dashboard(once, hosts=["ops.example.com", "2001:DB8::1"])
    for host, code in (("evil.example", 421), ("ops.example.com", 200), ("[::1]:80", 200), ("[2001:db8::1]:8765", 200)):
        assert DashboardVisitor(app, host=host).get("/").status_code == code


def test_who_may_not_read_does_not_learn_where_the_ledger_is(tmp_path):
    app = dashboard(Once(f"sqlite:///{tmp_path}/secret.db"), token=TOKEN)
    stranger, ada = DashboardVisitor(app), DashboardVisitor(app)
    ada.sign_in(TOKEN)
    for answer in (stranger.get("/"), stranger.get("/nothing"), DashboardVisitor(app, host="evil.test").get("/")):
        assert "secret.db" not in answer.text
    assert "secret.db" in ada.get("/").text


def test_with_a_token_nobody_reads_before_signing_in(app, once):
    visitor = DashboardVisitor(app)
    for path in ("/", "/records", f"/record?key={KEY}", f"/record.json?key={KEY}", f"/act?action=unpark&key={KEY}"):
        answer = visitor.get(path)
        assert (answer.status_code, KEY in answer.text) == (401, False)
        assert answer.headers["www-authenticate"] == 'Basic realm="onceward", charset="UTF-8"'
    assert visitor.post("/act", {"action": "unpark", "key": KEY, "why": "x"}).status_code == 401
    assert status(once) == "PARKED"
    assert visitor.get("/static/dashboard.css").status_code == 200


def test_a_wrong_token_or_no_name_opens_nothing_and_guesses_cost_time(app, monkeypatch):
    waits = []

    async def at_once(seconds):
        waits.append(seconds)

    monkeypatch.setattr("onceward.dashboard.shield.asyncio.sleep", at_once)
    pair = base64.b64encode(f"Ada:{TOKEN}".encode()).decode()
    spoilt = [base64.b64encode(one.encode()).decode() for one in ("Ada:wrong", f":{TOKEN}", "Ada", f" :{TOKEN}", "")]
    wrong = [
        f"Bearer {pair}",
        f"Basic {pair[:-8]}",
        "Basic ....",
        "Basic /w==",
        "Basic",
        *(f"Basic {one}" for one in spoilt),
    ]
    for login in wrong:
        assert DashboardVisitor(app, headers={"Authorization": login}).get("/").status_code == 401
    assert waits == [0.5] * len(wrong)
    other = DashboardVisitor(app)
    other.sign_in(TOKEN, "Zo\u00eb")
    assert "Zo\u00eb" in other.get("/").text


@each(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},  # no browser
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"},
    ],
)
def test_a_form_of_another_site_is_refused(ada, once, headers):
    answer = ada.post("/act", unparking(ada), headers=headers)
    assert (answer.status_code, status(once)) == (403, "PARKED")
    assert ada.post("/act", {"why": "x" * 100_000}).status_code == 413


def test_a_proxys_header_counts_only_from_the_proxy(once):
    app = dashboard(once, allow_actions=True, identity_header="X-User", trusted_proxies=["10.0.0.1"])
    named = {"X-User": "ada@example.com"}
    assert DashboardVisitor(app, peer="10.0.0.2", headers=named).get("/").status_code == 403
    assert DashboardVisitor(app, peer="10.0.0.1").get("/").status_code == 403
    ada = DashboardVisitor(app, peer="10.0.0.1", headers=named)
    assert "ada@example.com" in ada.get("/").text
    assert ada.post("/act", unparking(ada)).status_code == 303
    assert status(once) == "RELEASED"
    assert "ada@example.com (by the proxy&#39;s x-user)" in ada.get("/audit").text
