"""The example project of Django, under gunicorn with several workers, in a browser."""

import re

import pytest
from playwright.sync_api import expect

from web.dashboards import browsing
from web.django_shops import PROJECT, Shop, database_of
from web.servers import WebServer

pytestmark = pytest.mark.nightly


@pytest.fixture
def address(postgres, tmp_path):
    """The address of the project, with an operator."""
    shop = Shop(database_of("postgresql", tmp_path, postgres))
    shop.manage("migrate", "-v0")
    shop.environment["DJANGO_SUPERUSER_PASSWORD"] = "correct horse"
    shop.manage("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com")
    how = ["--preload", "--workers", "2", "--bind", "127.0.0.1:PORT", "--chdir", str(PROJECT)]
    server = WebServer("gunicorn", *how, "shop.wsgi", **shop.environment)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.kill()


def test_an_operator_finds_a_parked_key_and_unparks_it(address):
    with browsing() as browser:
        page = browser.new_page()
        page.goto(address)
        page.get_by_label("Cents").fill("200000")
        page.get_by_role("button", name="Pay").click()
        expect(page.get_by_text("more than the card allows").first).to_be_visible()
        page.goto(f"{address}/admin/")
        page.get_by_label("Username").fill("ada")
        page.get_by_label("Password").fill("correct horse")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Ledger").first.click()
        page.get_by_role("link", name="PARKED").click()
        page.get_by_role("link", name=re.compile("shop.order:")).click()
        expect(page.get_by_text("more than the card allows").first).to_be_visible()
        page.get_by_role("button", name=re.compile("^Unpark")).click()
        page.get_by_label(re.compile("^Why")).fill("a new card")
        page.get_by_role("button", name="Unpark 1 key").click()
        expect(page.get_by_text("unparked: the next delivery runs")).to_be_visible()
        page.get_by_role("link", name="RELEASED").click()
        page.get_by_role("link", name=re.compile("shop.order:")).click()
        expect(page.get_by_role("cell", name="a new card")).to_be_visible()
        page.goto(f"{address}/admin/")
        expect(page.locator("#recent-actions-module").get_by_text(re.compile("shop.order:"))).to_be_visible()
