"""Takes the pictures of docs/how-to/dashboard.md: ``python benchmarks/dashboard_pictures.py``. It needs Debian's chromium and playwright."""

import sys
import tempfile
import time
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "how-to"
sys.path.insert(0, str(PICTURES.parents[1] / "tests" / "support"))

from onceward import Once
from web.dashboards import TOKEN, browsing, dashboard_of


def orders(url):
    """Make a ledger that has seen some trouble."""
    once = Once(url, name="shop.fulfil")
    for number in range(2400):
        name = ("shop.charge", "shop.mail", "shop.ship")[number % 3]
        claim = once.acquire(f"order-{number:06}", name=name)
        if number % 1000 == 500:
            claim.park("CardDeclined: insufficient funds")
        elif number % 1000 == 501:
            claim.release(f"ConnectionError: the bank did not answer request {number}")
        else:
            claim.complete({"receipt": number})

    def refuse():
        raise ConnectionError("the carrier's API refused the connection")

    for number in range(3):
        for _ in range(3):
            try:
                with once.claim(f"order-{9600 + number}", max_attempts=3) as claim:
                    claim.step("reserve stock", lambda: {"warehouse": "Ghent", "shelf": 17})
                    claim.step("charge card", lambda: {"receipt": "ch_3Nq"})
                    claim.step("book carrier", refuse)
            except ConnectionError:
                time.sleep(0.3)
    lapsed = [once.acquire(f"evt-{number}", name="webhooks.stripe", lease=0.05) for number in range(2)]
    running = [once.acquire(f"order-{number}", name="shop.charge", lease=3600) for number in range(6)]
    once.close()
    return lapsed, running


def main():
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        orders(url)
        with dashboard_of(url) as base, browsing() as browser:
            known = {"username": "Ada", "password": TOKEN}
            for name, path, scheme, size in (
                ("overview", "/", "light", (1000, 660)),
                ("record", "/record?key=shop.fulfil:order-9600", "dark", (1000, 900)),
                ("action", "/act?action=unpark&key=shop.fulfil:order-9600", "light", (1000, 600)),
            ):
                viewport = {"width": size[0], "height": size[1]}
                page = browser.new_context(viewport=viewport, color_scheme=scheme, http_credentials=known).new_page()
                page.goto(base + path)
                page.screenshot(path=PICTURES / f"dashboard-{name}.png")


if __name__ == "__main__":
    main()
