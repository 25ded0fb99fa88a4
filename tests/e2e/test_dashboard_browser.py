"""The dashboard in a real browser: Debian's Chromium."""

import contextlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, PARKED
from onceward.core.writes import ended, first_claim
from places import SOURCES
from servers.needs import needs
from servers.orphans import watched

TOKEN = "correct horse battery staple"
PATIENCE = 60_000.0  # milliseconds that a page may take on a slow machine
MANY = 1_000  # records
HOSTILE = "shop:<script>window.owned=1</script><img src=x onerror=window.owned=1>\x1b[31m\u202e\"'&\r\n" + "x" * 1500


@contextlib.contextmanager
def dashboard_of(url):
    """Give the address of a dashboard of that ledger, which wants a token for actions."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "ONCEWARD_DASHBOARD_TOKEN": TOKEN}
    command = [sys.executable, "-m", "onceward", "dashboard", "--store", url, "--port", "0", "--allow-actions"]
    process = watched(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield found[0].rstrip("/")
    finally:
        process.terminate()
        process.communicate()


def elsewhere(call):
    """Run something in another thread: that of the test has the browser's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def fill(url):
    """Write many completed records, and a parked one."""
    once = Once(url)
    claims = [
        first_claim(f"shop.mail:order-{number:06}", f"{number:032x}", None, once.policy) for number in range(MANY)
    ]
    writes = [ended(claim, COMPLETED, '{"receipt":1}', None) for claim in claims]
    declined = first_claim("shop.ship:order-000500", "f" * 32, None, once.policy)
    writes.append(ended(declined, PARKED, None, "CardDeclined: insufficient funds")._replace(keep=None))
    drive(once.store.insert_many(writes), once.store)
    once.close()


@pytest.fixture(scope="module")
def browser():
    path = needs("chromium", "apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture
def page(browser):
    context = browser.new_context()  # with room for another page
    context.set_default_timeout(PATIENCE)
    made = context.new_page()
    made.trouble = []
    made.on("dialog", lambda dialog: made.trouble.append(dialog.message))
    made.on("console", lambda message: made.trouble.append(message.text) if message.type == "error" else None)
    made.on("pageerror", lambda error: made.trouble.append(str(error)))
    yield made
    context.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The URL of a small ledger."""
    url = f"sqlite:///{tmp_path_factory.mktemp('small')}/ledger.db"
    once = Once(url, name="shop")
    once.acquire("order-1").complete({"receipt": 1})
    once.acquire("order-2").park("CardDeclined: no such account")
    once.close()
    return url


@pytest.fixture(scope="module")
def base(small):
    with dashboard_of(small) as address:
        yield address


def sign_in(page, base):
    page.goto(base)
    page.get_by_label("Your name").fill("Ada")
    page.get_by_label("The token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()


@pytest.mark.nightly
def test_a_parked_message_is_found_explained_unparked_and_runs(tmp_path, page):
    url = f"sqlite:///{tmp_path}/ledger.db"
    elsewhere(lambda: fill(url))
    with dashboard_of(url) as base:
        sign_in(page, base)
        overview = page.context.new_page()
        overview.goto(base)
        parked = expect(overview.locator('[data-count="PARKED"]'))
        parked.to_have_text("1")
        page.get_by_role("row", name=re.compile("shop.ship.*CardDeclined")).get_by_role("link").click()
        page.get_by_role("link", name="shop.ship:order-000500").click()
        page.get_by_text("CardDeclined: insufficient funds").first.wait_for()
        page.get_by_role("link", name="Unpark…").click()
        page.get_by_text("The next delivery of this key runs").wait_for()
        page.get_by_label("Why you do this").fill("the customer has paid in")
        page.get_by_role("button", name="Unpark shop.ship:order-000500").click()
        page.get_by_role("heading", name="What people did").wait_for()
        expect(page.locator(".badge").first).to_have_text("released")
        parked.to_have_text("0")  # the other page has counted, too
        once = Once(url, name="shop.ship")
        assert elsewhere(lambda: once.run("order-000500", lambda: {"receipt": 500})) == {"receipt": 500}
        elsewhere(once.close)
        page.reload()
        expect(page.locator(".badge").first).to_have_text("completed")
        expect(page.locator("pre")).to_contain_text('"receipt": 500')
        expect(page.locator(".story")).to_contain_text("the customer has paid in")
    assert page.trouble == []


def test_hostile_keys_and_results_stay_text(page, small, base):
    once = Once(small)
    for status, result, error in ((PARKED, None, HOSTILE), (COMPLETED, f'"{HOSTILE[:60]}"', None)):
        claim = first_claim(f"{HOSTILE}{status}", "o", None, once.policy)
        write = ended(claim, status, result, error)
        elsewhere(lambda write=write: drive(once.store.insert(write), once.store))
    elsewhere(once.close)
    sign_in(page, base)
    for path in ("/", "/records", "/handlers", "/audit"):
        page.goto(base + path)
    page.goto(f"{base}/records?status=PARKED")
    page.get_by_role("link", name="shop:<script>").click()
    page.get_by_role("link", name="Unpark…").click()
    page.get_by_label("Why you do this").fill("<script>window.owned=1</script>")
    page.get_by_role("button", name="Unpark").click()
    page.get_by_role("heading", name="What people did").wait_for()
    page.goto(f"{base}/records?status=COMPLETED")
    page.get_by_role("link", name="shop:<script>").click()
    page.goto(f"{base}/audit")
    assert page.evaluate("window.owned") is None
    page.set_viewport_size({"width": 390, "height": 800})
    shown = f"key={quote(f'{HOSTILE}{PARKED}')}"
    for path in ("/", "/records", "/audit", "/handlers", f"/record?{shown}", f"/act?action=clear&{shown}"):
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    assert page.trouble == []


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


@pytest.mark.nightly
def test_each_page_is_made_for_a_screen_reader(page, base):
    sign_in(page, base)
    paths = ["/", "/records", "/search?q=order", "/handlers", "/audit", "/record?key=shop:order-2"]
    for path in [*paths, "/act?action=unpark&key=shop:order-2", "/record?key=none", "/nothing", "/sign-in"]:
        page.goto(base + path)
        told = page.evaluate(ACCESSIBLE)
        assert told == {"lang": "en", "title": True, "h1": 1, "main": 1, "unnamed": [], "heads": True}, path
    page.goto(base)
    expect(page.locator("[aria-live=polite]")).to_have_count(1)
