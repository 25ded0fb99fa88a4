"""``onceward watch`` as a command: what it prints, posts and runs."""

import http.server
import json
import signal
import subprocess
import threading

import pytest

from command_line import Cli
from onceward import Once, StoreError
from onceward.cli.watch import _round
from waiting import until


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def hook():
    """Give a webhook: its address, the requests that it got, and the status that it answers."""

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.got.append((self.headers["Idempotency-Key"], json.loads(body)))
            self.send_response(server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.got, server.status = [], 200
    server.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_notice_is_printed_posted_and_given_to_a_command(cli, url, hook):
    Once(url).acquire("order-1", name="pay").park("card\x1b[2J declined")
    script = cli.script("alarm", 'echo "$ONCEWARD_EVENT $ONCEWARD_KIND" >> seen; cat >> seen')
    ran = cli.run("watch", "--store", url, "--once", "--no-doctor", "--webhook", hook.url, "--exec", script)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.decode().startswith("parked began: pay:order-1: card\\u001b[2J declined (attempt 1 of ")
    ((key, body),) = hook.got
    assert (body["event"], body["kind"], body["incidents"][0]["subject"]) == ("began", "parked", "pay:order-1")
    assert len(key) == 38
    first, second = (cli.folder / "seen").read_text().splitlines()
    assert (first, json.loads(second)) == ("began parked", body)
    again = cli.run("watch", "--store", url, "--once", "--no-doctor", "--webhook", hook.url)
    assert (again.returncode, again.stdout, len(hook.got)) == (0, b"", 1)


def test_a_webhook_that_is_down_is_tried_again_with_the_same_key(cli, url, hook):
    Once(url).acquire("order-1", name="pay").park("no")
    hook.status = 503
    failed = cli.run("watch", "--store", url, "--once", "--no-doctor", "--webhook", hook.url)
    assert failed.returncode == 1
    assert "answered 503" in failed.stderr
    assert failed.stdout.startswith(b"parked began: pay:order-1")  # the terminal is told all the same
    hook.status = 204
    assert cli.run("watch", "--store", url, "--once", "--no-doctor", "--webhook", hook.url).returncode == 0
    (first, _), (second, _) = hook.got
    assert first == second


def test_a_watcher_ends_at_a_signal(cli, url):
    Once(url).acquire("order-1", name="pay").park("no")
    watcher = cli.start("watch", "--store", url, "--every", "1h", "--no-doctor", stdout=subprocess.PIPE)
    assert watcher.stdout.readline().startswith(b"parked began: pay:order-1")
    watcher.send_signal(signal.SIGTERM)
    _, errors = watcher.communicate(timeout=60)
    assert (watcher.returncode, errors) == (0, b"")


def test_a_watcher_that_is_told_to_stop_ends_after_the_notice_that_it_tells(cli, url):
    """A webhook that hangs takes ten seconds for each notice."""
    for number in range(60):
        Once(url).acquire(number, name="pay").park("no")
    script = cli.script("slow", "echo told >> seen; sleep 3")
    watcher = cli.start("watch", "--store", url, "--every", "1h", "--no-doctor", "--exec", script)
    until((cli.folder / "seen").exists)
    watcher.send_signal(signal.SIGTERM)
    watcher.communicate(timeout=60)
    assert (watcher.returncode, (cli.folder / "seen").read_text()) == (0, "told\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--webhook", "ftp://example.com"], "give an https:// or http:// URL"),
        (["--exec", "  "], "--exec: give a command"),
        (["--every", "0"], "--every"),
        (["--stuck", "soon"], "--stuck soon"),
    ],
)
def test_a_wrong_option_is_refused(cli, url, options, says):
    Once(url).acquire("order-1", name="pay").park("no")
    refused = cli.run("watch", "--store", url, "--once", *options)
    assert refused.returncode == 2
    assert says in refused.stderr


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StoreError("the ledger does not answer"), "the ledger does not answer"),
        (RuntimeError("a driver's own"), "RuntimeError: a driver's own"),
    ],
)
def test_a_ledger_that_is_away_is_asked_again(capsys, error, says):
    class Away:
        def round(self, _):
            raise error

    assert _round(Away(), bool)
    assert capsys.readouterr().err == f"onceward: {says}\n"
