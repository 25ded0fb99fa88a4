"""Who may look at a dashboard, and who may act: tokens, sessions, proxies, other sites and other names."""

import pytest

from onceward import Once
from onceward.dashboard import dashboard
from onceward.dashboard.access import FORM, SESSION, Access, WrongTokens
from onceward.dashboard.app import build_app
from onceward.dashboard.shield import COOKIE
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
def app(once, clock):
    return build_app(once, Access(allow_actions=True, token=TOKEN, clock=clock), hide_results=False)


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
    for answer in (stranger.get("/sign-in"), stranger.get("/live"), DashboardVisitor(app, host="evil.test").get("/")):
        assert "secret.db" not in answer.text
    assert "secret.db" in ada.get("/").text


def test_with_a_token_nobody_reads_before_signing_in(app):
    visitor = DashboardVisitor(app)
    for path in ("/", "/records", f"/record?key={KEY}", f"/record.json?key={KEY}"):
        answer = visitor.get(path)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/sign-in")
    assert visitor.get("/live").status_code == 401
    assert visitor.get("/static/dashboard.css").status_code == 200


def test_signing_in_leads_to_where_the_visitor_wanted(app):
    visitor = DashboardVisitor(app)
    following = visitor.get(f"/record?key={KEY}").headers["location"].partition("next=")[2]
    assert following == "%2Frecord%3Fkey%3Dshop.charge%3Aorder-7"
    for following, leads in (("/records?x=1", "/records?x=1"), ("//evil.example", "/"), ("https://evil.example", "/")):
        answer = visitor.post("/sign-in", {"token": TOKEN, "name": "Ada", "next": following})
        assert answer.headers["location"] == leads


def test_a_wrong_token_opens_nothing_and_guesses_are_few(app, once, monkeypatch):
    async def at_once(_):
        pass

    monkeypatch.setattr("onceward.dashboard.shield.asyncio.sleep", at_once)
    visitor = DashboardVisitor(app)
    again = DashboardVisitor(app, peer="10.0.0.8")  # one wrong token that is sent again counts once
    assert {again.post("/sign-in", {"token": "old", "name": "Ada"}).status_code for _ in range(12)} == {403}
    again.sign_in(TOKEN)
    codes = [visitor.post("/sign-in", {"token": f"guess {n}", "name": "Eve"}).status_code for n in range(11)]
    assert codes == [403] * 10 + [429]
    assert visitor.post("/sign-in", {"token": TOKEN, "name": "Eve"}).status_code == 429
    assert COOKIE not in visitor.cookies
    DashboardVisitor(app, peer="10.0.0.7").sign_in(TOKEN)  # guesses of one client lock out no other
    DashboardVisitor(dashboard(once, token=TOKEN)).sign_in(TOKEN)  # another dashboard of this process


def test_guesses_through_a_trusted_proxy_count_for_whom_it_names():
    wrong = WrongTokens()
    access = Access(token=TOKEN, identity_header="X-User", trusted_proxies=["10.0.0.1"])
    for n in range(10):
        wrong.add(access.client("10.0.0.1", ["9.9.9.9, 2001:db8::1"]), f"guess {n}")
    assert wrong.is_over(access.client("10.0.0.1", ["2001:db8::2"]))  # of the same /64
    assert not wrong.is_over(access.client("10.0.0.1", ["9.9.9.9"]))
    assert not wrong.is_over(access.client("10.0.0.2", ["2001:db8::1"]))  # nobody's proxy


@each(("scheme", "secure"), [("https", True), ("http", False)])
def test_the_session_is_a_cookie_that_other_sites_and_scripts_never_see(app, scheme, secure):
    visitor = DashboardVisitor(app, headers={"origin": f"{scheme}://127.0.0.1"})  # TLS as far as a proxy
    told = visitor.post("/sign-in", {"token": TOKEN, "name": "Ada"}).headers["set-cookie"].lower()
    assert "httponly" in told
    assert "samesite=strict" in told
    assert ("; secure" in told) is secure
    assert TOKEN not in told


def test_a_changed_session_is_none(ada):
    cookie = ada.cookies[COOKIE]
    ada.cookies.clear()
    for spoilt in (cookie[:-1] + "x", "x" + cookie, "....", "é"):
        assert ada.get("/", headers={"Cookie": f"{COOKIE}={spoilt}".encode()}).status_code == 303
    assert ada.get("/", headers={"Cookie": f"{COOKIE}={cookie}".encode()}).status_code == 200


def test_a_session_and_a_form_end(ada, app, clock, once):
    bob = DashboardVisitor(app)
    bob.sign_in(TOKEN)
    token = bob.get("/").text.split('name="form" value="')[1].split('"')[0]
    assert bob.post("/sign-out", {"form": token}).status_code == 303
    assert bob.get("/").status_code == 303
    old = unparking(ada)
    clock.advance(FORM + 1)
    answer = ada.post("/act", old)
    assert (answer.status_code, "too old" in answer.text) == (403, True)
    form = unparking(ada)
    clock.advance(SESSION - FORM)
    assert ada.get("/").status_code == 303
    answer = ada.post("/act", form)
    assert (answer.status_code, "Nothing was changed" in answer.text) == (401, True)
    assert status(once) == "PARKED"


@each(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"},
    ],
)
def test_a_form_of_another_site_is_refused(ada, once, headers):
    answer = ada.post("/act", unparking(ada), headers=headers)
    assert (answer.status_code, status(once)) == (403, "PARKED")
    assert ada.post("/act", {"why": "x" * 100_000}).status_code == 413


def test_a_form_without_its_own_token_is_refused(ada, app, once):
    bob = DashboardVisitor(app)
    bob.sign_in(TOKEN, "Bob")
    for forged in ("", "1", "9999999999.00", unparking(bob)["form"]):
        answer = ada.post("/act", unparking(ada, form=forged))
        assert (answer.status_code, status(once)) == (403, "PARKED")


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
