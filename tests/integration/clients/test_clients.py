"""Clients of HTTP that send a request again under one key, against a server that loses answers and asks for patience."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import httpx
import pytest
import requests

import onceward
from onceward import LeaseLost, Once
from onceward.clients import AiohttpIdempotency, AsyncHttpxTransport, HttpxTransport, RequestsAdapter, SendAgain
from onceward.http.request import read_key
from tables import each

pytestmark = pytest.mark.sampled(ask=2)

LOST, CUT = "lost", "cut"  # the answer is lost; it breaks off in the middle


class Downstream:
    """A server that answers as it is told, and remembers what reached it."""

    def __init__(self):
        self.answers = []  # (status, headers) or LOST or CUT; 200 when there are no more
        self.came = []  # method, path, headers, body
        downstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                downstream.came.append((self.command, self.path, self.headers, body))
                answer = downstream.answers.pop(0) if downstream.answers else (200, {})
                if answer is LOST:
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
                status, headers = (200, {}) if answer is CUT else answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "9" if answer is CUT else "2")
                self.end_headers()
                self.wfile.write(b"ok")
                if answer is CUT:
                    self.close_connection = True

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    @property
    def keys(self):
        return [headers.get("Idempotency-Key") for _, _, headers, _ in self.came]


def by_httpx(method, url, rules=None, **more):
    with httpx.Client(transport=HttpxTransport(rules=rules)) as client:
        return client.request(method, url, **more).status_code


def by_async_httpx(method, url, rules=None, **more):
    async def call():
        async with httpx.AsyncClient(transport=AsyncHttpxTransport(rules=rules)) as client:
            return (await client.request(method, url, **more)).status_code

    return asyncio.run(call())


def by_requests(method, url, rules=None, **more):
    with requests.Session() as session:
        session.mount("http://", RequestsAdapter(rules))
        return session.request(method, url, **more).status_code


def by_aiohttp(method, url, rules=None, **more):
    async def call():
        async with (
            aiohttp.ClientSession(middlewares=[AiohttpIdempotency(rules)]) as session,
            session.request(method, url, **more) as response,
        ):
            return response.status

    return asyncio.run(call())


CLIENTS = [by_httpx, by_async_httpx, by_requests, by_aiohttp]
ERRORS = (httpx.TransportError, requests.ConnectionError, aiohttp.ClientConnectionError)


@pytest.fixture
def downstream():
    made = Downstream()
    yield made
    made.close()


@pytest.fixture(params=CLIENTS, ids=lambda one: one.__name__)
def ask(request):
    return request.param


@pytest.fixture
def once(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.close()


def test_a_lost_answer_is_asked_for_again_under_the_same_key(ask, downstream):
    downstream.answers = [LOST, (503, {}), (409, {"Retry-After": "0"}), (200, {})]
    assert ask("POST", f"{downstream.url}/charges?trace=1", json={"amount": 1}) == 200
    assert len(set(downstream.keys)) == 1
    assert len({body for *_, body in downstream.came}) == 1
    assert len(downstream.came) == 4
    assert len(read_key([downstream.keys[0]], strict=True)) == 36


def test_a_redirect_to_another_host_takes_no_credentials_along(ask, downstream):
    downstream.answers = [(307, {"Location": downstream.url.replace("127.0.0.1", "localhost") + "/moved"}), LOST]
    follow = {"follow_redirects": True} if "httpx" in ask.__name__ else {}
    assert ask("POST", f"{downstream.url}/charges", headers={"Authorization": "Bearer x"}, **follow) == 200
    assert [headers.get("Authorization") for _, _, headers, _ in downstream.came] == ["Bearer x", None, None]
    first, *moved = downstream.keys
    assert (len(set(moved)), first in moved) == (1, ask is not by_aiohttp)


def test_each_call_outside_of_a_handler_has_its_own_key(ask, downstream):
    for _ in range(2):
        assert ask("PATCH", f"{downstream.url}/charges/1", json={}) == 200
    assert len(set(downstream.keys)) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 500, 501])
def test_answers_that_stay_the_same_are_not_asked_for_again(ask, downstream, status):
    downstream.answers = [(status, {"Retry-After": "0"})]
    assert ask("POST", downstream.url, json={}) == status
    assert len(downstream.came) == 1


def test_methods_without_a_key_are_sent_again_only_if_they_may(ask, downstream):
    for method in ("GET", "PUT", "DELETE"):
        downstream.answers = [(503, {})]
        assert ask(method, downstream.url) == 200
    downstream.answers = [(503, {})]
    assert ask("POST", downstream.url, SendAgain(methods=("PATCH",)), json={}) == 503
    assert downstream.keys == [None] * 7


def test_a_retry_after_is_waited_for_or_left_to_the_caller(ask, downstream):
    downstream.answers = [(429, {"Retry-After": "1"})]
    began = time.monotonic()
    assert ask("POST", downstream.url, json={}) == 200
    assert time.monotonic() - began >= 1
    then = "Fri, 01 Jan 2100 00:00:00 GMT"
    downstream.answers = [(503, {"Retry-After": then})]
    assert ask("POST", downstream.url, json={}) == 503
    downstream.answers = [(503, {"Retry-After": "31"})]
    assert ask("POST", downstream.url, json={}) == 503


def test_a_retry_after_that_is_no_text_is_not_waited_for(ask, downstream):
    downstream.answers = [(503, {"Retry-After": "\xff"})]
    assert ask("POST", downstream.url, json={}) == 200
    assert len(set(downstream.keys)) == 1


def test_the_last_error_is_the_callers(ask, downstream):
    downstream.answers = [LOST] * 3
    with pytest.raises(ERRORS):
        ask("POST", downstream.url, SendAgain(times=3), json={})
    assert len(downstream.came) == 3
    assert len(set(downstream.keys)) == 1


def test_another_header_gets_the_bare_key(ask, downstream):
    assert ask("POST", downstream.url, SendAgain(header="PayPal-Request-Id"), json={}) == 200
    assert downstream.keys == [None]
    assert len(downstream.came[0][2]["PayPal-Request-Id"]) == 36


@pytest.mark.parametrize(("ask", "argument"), [(by_httpx, "content"), (by_requests, "data")], ids=["httpx", "requests"])
def test_a_stream_is_sent_once(ask, argument, downstream):
    downstream.answers = [(503, {})]
    assert ask("POST", downstream.url, **{argument: (part for part in [b"{", b"}"])}) == 503
    assert len(downstream.came) == 1


# --- within a handler -----------------------------------------------------------------------------------------------


def test_the_next_attempt_of_a_handler_sends_the_same_key(ask, downstream, once):
    @once(key="order", name="shop", max_attempts=5)
    def charge(order):
        ask("POST", f"{downstream.url}/charges?attempt={len(downstream.came)}", json={"at": time.time()})
        ask("POST", f"{downstream.url}/mails", json={})
        if len(downstream.came) < 4:
            raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        charge("a")
    charge("a")
    first, mail, again, mail_again = downstream.keys
    assert (first, mail) == (again, mail_again)
    assert first != mail
    charge("b")
    assert downstream.keys[4] != first


def test_a_step_that_is_not_entered_again_takes_its_key_along(ask, downstream, once):
    @once(key="order", name="shop")
    def place(order, claim: onceward.Claim):
        for name in ("one", "two"):
            claim.step(name, ask, "POST", f"{downstream.url}/same", json={"step": name})
        ask("POST", f"{downstream.url}/same", json={"step": None})

    downstream.answers = [(200, {}), LOST, LOST, LOST, LOST]
    with pytest.raises(ERRORS):
        place("a")
    place("a")
    told = {}
    for (*_, body), key in zip(downstream.came, downstream.keys, strict=True):
        told.setdefault(json.loads(body)["step"], set()).add(key)
    assert {name: len(keys) for name, keys in told.items()} == {"one": 1, "two": 1, None: 1}
    assert len(set.union(*told.values())) == 3


def test_two_requests_that_the_key_cannot_tell_apart_are_refused(ask, downstream, once):
    @once(key="order", name="shop")
    def charge(order):
        ask("POST", f"{downstream.url}/cards", json={"amount": 10})
        with pytest.raises(ValueError, match=r"claim\.key"):
            ask("POST", f"{downstream.url}/cards", json={"amount": 10})
        ask(
            "POST",
            f"{downstream.url}/cards",
            json={"amount": 10},
            headers={"Idempotency-Key": onceward.current().key(2)},
        )

    charge("a")
    assert len(set(downstream.keys)) == 2


def test_a_handler_that_lost_its_claim_sends_nothing_more(ask, downstream, once):
    def answer_late():
        time.sleep(0.3)
        with Once(once.store.url).claim("a", name="shop"):
            pass

    claim = once.acquire("a", name="shop", lease=0.2)
    with pytest.raises(LeaseLost):
        from onceward.claim.running import Under

        with Under(claim):
            answer_late()
            ask("POST", downstream.url, json={})
    assert downstream.came == []


WORKER = """
import sys, httpx
from onceward import Once
from onceward.clients import HttpxTransport

once = Once(sys.argv[1])
client = httpx.Client(transport=HttpxTransport())

@once(key="order", name="shop", lease=0.5)
def charge(order):
    client.post(sys.argv[2] + "/charges", json={"order": order})
    print("sent", flush=True)
    if sys.argv[3] == "hang":
        import time; time.sleep(600)

charge("a")
"""


def test_a_killed_worker_and_its_successor_send_the_same_key(downstream, once):
    command = [sys.executable, "-c", WORKER, once.store.url, downstream.url]
    process = subprocess.Popen([*command, "hang"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"sent\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(0.6)
    subprocess.run([*command, "end"], check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert len(downstream.came) == 2
    assert len(set(downstream.keys)) == 1


@each(
    "options",
    [{"times": 0}, {"times": True}, {"within": -1}, {"methods": "POST"}, {"methods": ("post",)}, {"header": "a b"}],
)
def test_wrong_rules_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SendAgain(**options)
