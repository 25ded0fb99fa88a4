"""The example payment services and the proxy as processes, whose clients leave and which are told to stop."""

import contextlib
import http.client

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from waiting import until
from web.answering import Answering
from web.servers import gunicorn, keyed, payment, serving, uvicorn

FLASK, DJANGO = "payments_flask:app", "payments_django:application"
SERVERS = {
    "flask, threads, preloaded": (gunicorn, FLASK, "--workers", "2", "--threads", "6", "--preload"),
    "django, processes": (gunicorn, DJANGO, "--workers", "4"),
    "django under asgi": (uvicorn, "payments_django:asgi", "--workers", "2"),
    "fastapi": (uvicorn, "payments_fastapi:app"),
}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/payments.db"


@pytest.mark.sampled("flask, threads, preloaded", "fastapi")
@pytest.mark.parametrize("served", SERVERS)
def test_a_server_told_to_stop_waits_for_a_payment_whose_client_has_left(url, served):
    start, *options = SERVERS[served]
    with start(*options, LEDGER=url, BANK_SECONDS="1") as server:
        with pytest.raises(TimeoutError):
            server.post("/payments", payment("a"), keyed("k"), 0.4)
        server.process.terminate()
        server.process.wait(120)  # gunicorn kills a worker after 30 s that it stopped as it began
    assert [record.status for record, _ in Once(url).ledger.records()] == [COMPLETED]


def test_a_proxy_told_to_stop_finishes_the_request_under_way(url):
    with contextlib.closing(Answering()) as upstream:
        command = f"onceward proxy --upstream {upstream.url} --name http --scope everybody --port PORT --store {url}"
        with serving(*command.split()) as server:
            upstream.pause = 1.0
            with pytest.raises(TimeoutError):
                server.post("/orders", b"{}", keyed("k"), 0.5)
            until(lambda: [path for _, path, _, _ in upstream.came if path == "/orders"])
            server.process.terminate()
            server.process.wait(60)
    assert [record.status for record, _ in Once(url).ledger.records()] == [COMPLETED]


def test_a_worker_that_takes_too_long_for_gunicorn_leaves_key_to_lease(url):
    with gunicorn(FLASK, "--timeout", "1", LEDGER=url, BANK_SECONDS="60", LEASE="60") as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            server.post("/payments", payment("a"), keyed("k"), 10)
        assert Once(url).ledger.is_live("payments:k:*")


@pytest.mark.parametrize(
    ("path", "headers", "size", "told"), [("/orders", keyed("k"), 900_000, b"n:k:*"), ("/body", {}, 150_000, b"")]
)
def test_a_request_does_not_have_the_claim_of_the_one_before_it_on_its_connection(url, path, headers, size, told):
    # The server stops reading, and goes on in the context of who asks for more.
    with uvicorn("web_claims:app", LEDGER=url) as server, server.connection() as connection:
        for target, fields, answer in [(path, headers, told), ("/whose", {}, b"")]:
            connection.request("POST", target, b"x" * size, fields)
            assert connection.getresponse().read() == answer


def test_a_pipelined_request_does_not_have_the_claim_of_the_one_before(url):
    lines = "Host: shop\r\nContent-Length: 0\r\n"
    pair = f'POST /orders HTTP/1.1\r\n{lines}Idempotency-Key: "k"\r\n\r\nPOST /whose HTTP/1.1\r\n{lines}Connection: close\r\n\r\n'
    with uvicorn("web_claims:app", LEDGER=url) as server, server.connection() as connection:
        connection.connect()
        connection.sock.sendall(pair.encode())
        answers = b"".join(iter(lambda: connection.sock.recv(65536), b""))
    assert answers.count(b"200 OK") == 2
    assert answers.count(b"n:k:*") == 1
