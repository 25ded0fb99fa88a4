"""The dashboard in a real browser: Debian's Chromium."""

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, PARKED
from onceward.core.writes import ended, first_claim
from web.dashboards import PATIENCE, TOKEN, browsing, dashboard_of

HOSTILE = "shop:<script>window.owned=1</script><img src=x onerror=window.owned=1>\x1b[31m\u202e\"'&\r\n" + "x" * 1500


def elsewhere(call):
    """Run something in another thread: that of the test has the browser's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.fixture(scope="module")
def browser():
    with browsing() as made:
        yield made


@pytest.fixture
def page(browser):
    context = browser.new_context(http_credentials={"username": "Ada", "password": TOKEN})
    context.set_default_timeout(PATIENCE)
    made = context.new_page()
    made.trouble = []
    made.on("dialog", lambda dialog: made.trouble.append(dialog.message))
    made.on("console", lambda message: made.trouble.append(message.text) if message.type == "error" else None)
    made.on("pageerror", lambda error: made.trouble.append(str(error)))
    yield made
    context.close()


@pytest.fixture
def ledger(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/ledger.db", name="shop")
    made.acquire("order-1").complete({"receipt": 1})
    made.acquire("order-2").park("CardDeclined: no such account")
    yield made
    elsewhere(made.close)


@pytest.fixture
def base(ledger):
    with dashboard_of(ledger.store.url) as address:
        yield address


ACCESSIBLE = """() => {
  const named = (one) => one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim();
  const fields = [...document.querySelectorAll('input:not([type=hidden]), select, button, a')];
  return {
    lang: document.documentElement.lang, title: document.title !== '',
    h1: document.querySelectorAll('h1').length, main: document.querySelectorAll('main').length,
    unnamed: fields.filter((one) => !named(one)).map((one) => one.outerHTML),
    heads: [...document.querySelectorAll('th')].every((one) => one.scope),
  };
}"""


def test_a_parked_message_is_unparked_and_each_page_is_for_everybody_and_takes_hostile_text_for_text(
    page, ledger, base
):
    for status, result, error in ((PARKED, None, HOSTILE), (COMPLETED, f'"{HOSTILE[:60]}"', None)):
        claim = first_claim(f"{HOSTILE}{status}", "o", None, ledger.policy)
        write = ended(claim, status, result, error)
        elsewhere(lambda write=write: drive(ledger.store.insert(write), ledger.store))
    page.goto(base)
    parked = expect(page.locator('[data-count="PARKED"]'))
    parked.to_have_text("2")
    page.goto(f"{base}/records?status=PARKED")
    page.get_by_role("link", name="shop:<script>").click()
    page.get_by_role("link", name="Unpark…").click()
    page.get_by_text("The next delivery of this key runs").wait_for()
    page.get_by_label("Why you do this").fill("<script>window.owned=1</script>")
    page.get_by_role("button", name="Unpark").click()
    page.get_by_role("heading", name="What people did").wait_for()
    expect(page.locator(".badge").first).to_have_text("released")
    page.goto(f"{base}/records?status=COMPLETED")
    page.get_by_role("link", name="shop:<script>").click()
    page.set_viewport_size({"width": 390, "height": 800})
    shown, plain = f"key={quote(f'{HOSTILE}{PARKED}')}", "key=shop:order-2"
    paths = [
        "/",
        "/records",
        "/search?q=order",
        "/audit",
        f"/record?{shown}",
        f"/act?action=clear&{shown}",
    ]
    for path in [*paths, f"/record?{plain}", f"/act?action=unpark&{plain}", "/record?key=none", "/nothing"]:
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        told = page.evaluate(ACCESSIBLE)
        assert told == {"lang": "en", "title": True, "h1": 1, "main": 1, "unnamed": [], "heads": True}, path
        assert page.evaluate("window.owned") is None
    assert [text for text in page.trouble if "404" not in text] == []
