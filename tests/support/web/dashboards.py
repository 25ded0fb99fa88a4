"""A dashboard as a process of its own, a browser to look at it, and ledgers with many records."""

import contextlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.core.writes import ended, first_claim
from places import SOURCES
from servers.needs import missing, needs
from servers.orphans import watched

TOKEN = "correct horse battery staple"
_VARIABLE = "ONCEWARD_DASHBOARD_TOKEN"
_BATCH = 500
PATIENCE = 60_000.0  # milliseconds that a page may take on a slow machine


@contextlib.contextmanager
def dashboard_of(url, *options, token=None):
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    environment.pop(_VARIABLE, None)
    if token is not None:
        environment[_VARIABLE] = token
    command = [sys.executable, "-m", "onceward", "dashboard", "--store", url, "--port", "0", *options]
    process = watched(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield found[0].rstrip("/")
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def browsing():
    """Give a browser. It runs an event loop in this thread, so it ends with the tests of a module at the latest."""
    path = needs("chromium", "apt-get install chromium")
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        missing("playwright is not installed: pip install playwright")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


def elsewhere(call):
    """Run something in another thread: that of the test has the browser's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def fill(url, count):
    """Write many records with batch requests. One in a thousand is parked, another one released."""

    names = ("shop.charge", "shop.mail", "shop.ship")

    def write(once, number):
        key = f"{names[number % len(names)]}:order-{number:06}"
        claim = first_claim(key, f"{number:032x}", None, once.policy)
        if number % 1000 == 500:
            return ended(claim, PARKED, None, "CardDeclined: insufficient funds")._replace(keep=None)
        if number % 1000 == 501:
            return ended(claim, RELEASED, None, f"ConnectionError: the bank did not answer request {number}")
        return ended(claim, COMPLETED, f'{{"receipt":{number},"note":"{"paid " * 20}"}}', None)

    once = Once(url)
    try:
        for start in range(0, count, _BATCH):
            writes = [write(once, number) for number in range(start, min(start + _BATCH, count))]
            drive(once.store.insert_many(writes), once.store)
    finally:
        once.close()
