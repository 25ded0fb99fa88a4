"""A dashboard as a process of its own, and a browser to look at it."""

import contextlib
import os
import re
import subprocess
import sys

from playwright.sync_api import expect, sync_playwright

from places import SOURCES
from servers.needs import needs
from servers.orphans import watched

TOKEN = "correct horse battery staple"
PATIENCE = 60_000.0  # milliseconds that a page may take on a slow machine


@contextlib.contextmanager
def dashboard_of(url):
    """Give the address of a dashboard that wants a token for actions."""
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


@contextlib.contextmanager
def browsing():
    """Give a browser. It runs an event loop in this thread, so it ends with the tests of a module at the latest."""
    path = needs("chromium", "apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()
