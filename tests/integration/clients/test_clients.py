"""Clients of HTTP that send a request again under one key, against a server that loses answers and asks for patience."""

import asyncio
import json
import pickle
import time

import aiohttp
import httpx
import pytest
import requests

import onceward
from fixtures import closing_fixture
from onceward import LeaseLost, Once
from onceward.claim.called import Under
from onceward.clients import AiohttpIdempotency, AsyncHttpxTransport, HttpxTransport, RequestsAdapter, SendAgain
from onceward.http.request import read_key
from tables import each
from web.http_servers import LOST, Answering

pytestmark = pytest.mark.sampled(ask=2)


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
        return pickle.loads(pickle.dumps(session)).request(method, url, **more).status_code


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
downstream = closing_fixture(Answering)


@pytest.fixture(params=CLIENTS, ids=lambda one: one.__name__)
def ask(request):
    return request.param


once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db"))


def test_a_lost_answer_is_asked_for_again_under_the_same_key(ask, downstream):
    downstream.answers = [LOST, (503, {}), (409, {"Retry-After": "0"}), (200, {})]
    assert ask("POST", f"{downstream.url}/charges?trace=1", json={"amount": 1}) == 200
    assert len(set(downstream.keys)) == 1
    assert len({body for *_, body in downstream.came}) == 1
    assert len(downstream.came) == 4
    assert len(read_key([downstream.keys[0]], strict=True)) == 36
    assert ask("POST", f"{downstream.url}/charges?trace=1", json={"amount": 1}) == 200
    assert len(set(downstream.keys)) == 2, "another call outside of a handler has a key of its own"


def test_a_redirect_to_another_host_takes_no_credentials_along(ask, downstream):
    downstream.answers = [(307, {"Location": downstream.url.replace("127.0.0.1", "localhost") + "/moved"}), LOST]
    assert ask("POST", f"{downstream.url}/charges", headers={"Authorization": "Bearer x"}, **follow(ask)) == 200
    assert [headers.get("Authorization") for _, _, headers, _ in downstream.came] == ["Bearer x", None, None]
    first, *moved = downstream.keys
    assert (len(set(moved)), first in moved) == (1, False)


def follow(ask):
    return {"follow_redirects": True} if "httpx" in ask.__name__ else {}


def test_a_request_object_that_is_sent_again_has_another_key(downstream):
    with httpx.Client(transport=HttpxTransport()) as client, requests.Session() as session:
        session.mount("http://", RequestsAdapter())
        prepared = requests.Request("POST", downstream.url).prepare()
        for send, request in ((client.send, client.build_request("POST", downstream.url)), (session.send, prepared)):
            send(request)
            send(request)
    assert len(set(downstream.keys)) == 4


def test_answers_that_stay_the_same_are_not_asked_for_again(ask, downstream):
    for status in (400, 401, 404, 410, 422, 500, 501):
        downstream.came.clear()
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
    downstream.answers = [(503, {"Retry-After": "\xff"})]  # not waited for
    assert ask("POST", downstream.url, json={}) == 200


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
    assert ask("POST", downstream.url, json={}, headers={"Idempotency-Key": ""}) == 200
    assert len(downstream.keys[1]) == 36 + len('""')


@pytest.mark.parametrize(("ask", "argument"), [(by_httpx, "content"), (by_requests, "data")], ids=["httpx", "requests"])
def test_a_stream_is_sent_once(ask, argument, downstream):
    downstream.answers = [(503, {})]
    assert ask("POST", downstream.url, **{argument: (part for part in [b"{", b"}"])}) == 503
    assert len(downstream.came) == 1


def test_the_next_attempt_of_a_handler_sends_the_same_key(ask, downstream, once):
    @once(key="order", name="shop", max_attempts=5)
    def charge(order):
        url = downstream.url.replace("//", f"//svc:{time.time()}@")  # another password
        ask("POST", f"{url}/charges?attempt={len(downstream.came)}", json={"at": time.time()})
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
        downstream.answers = [(401, {}), (407, {}), (307, {"Location": f"{downstream.url}/cards?region=eu"})]
        for status in (401, 407):  # as an auth flow of httpx does
            assert ask("POST", f"{downstream.url}/cards", json={"amount": 10}) == status
        assert ask("POST", f"{downstream.url}/cards", json={"amount": 10}, **follow(ask)) == 200
        with pytest.raises(ValueError, match=r"claim\.key"):
            ask("POST", f"{downstream.url}/cards", json={"amount": 10})
        headers = {"Idempotency-Key": onceward.current().key(2)}
        ask("POST", f"{downstream.url}/cards", json={"amount": 10}, headers=headers)

    charge("a")
    assert len(set(downstream.keys)) == 2


def test_a_handler_that_lost_its_claim_sends_nothing_more(ask, downstream, once):
    claim = once.acquire("a", name="shop", lease=1)
    with pytest.raises(LeaseLost), Under(claim):
        time.sleep(1.1)
        with Once(once.store.url).claim("a", name="shop"):
            pass
        ask("POST", downstream.url, json={})
    assert downstream.came == []
    downstream.answers = [(503, {"Retry-After": "2"})]  # it loses its claim in this pause
    with pytest.raises(LeaseLost), Under(once.acquire("b", name="shop", lease=1)):
        ask("POST", downstream.url, json={})
    assert len(downstream.came) == 1


def test_an_iterator_of_methods_counts_as_a_tuple():
    assert SendAgain(methods=map(str.upper, ["post"])).methods == {"POST"}


@each(
    "options",
    [{"methods": "POST"}, {"methods": ("post",)}, {"times": "3"}, {"times": 0}, {"within": -1}],
)
def test_wrong_rules_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SendAgain(**options)
