"""Targets: their addresses, and HTTP endpoints with a real server that answers, refuses, stalls and breaks off."""

import contextlib
import ssl
import traceback
from contextlib import closing
from unittest.mock import AsyncMock

import pytest

from onceward.core.origin import decoded
from onceward.nats import NatsTarget
from onceward.outbox import HttpTarget, MessageNotSent, MessageRefused, OutboxMessage, register, targets
from onceward.outbox import http_target as module
from onceward.outbox.targets import open_target
from onceward.wire.sockets import Sockets
from queues.boxes import RecordedTarget
from servers.needs import certificate
from tables import each
from web.scripted import Server, once, serve, slow

KEY = "00000000-0000-4000-8000-000000000001"


def answer(status, *headers, body=""):
    lines = [f"HTTP/1.1 {status} Any", *headers, f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + f"\r\n\r\n{body}").encode()


def headers_of(head):
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])}


@pytest.fixture
def endpoint():
    """Give a function that starts a server; unless it is scripted, it answers with these bytes."""
    with contextlib.ExitStack() as running:
        yield lambda *answers, script=None, tls=None: running.enter_context(
            Server(script or serve(*answers or [answer(200)]), tls=tls)
        )


def send(url, body='{"order": 1}', **more):
    with closing(HttpTarget(url)) as target:
        (told,) = target.send([OutboxMessage(KEY, body, **more)])
    return told


def test_a_message_is_a_post_with_its_key(endpoint):
    server = endpoint()
    assert send(f"{server.url}/charges?dry=1", headers={"X-Tenant": "a b", "onceward-root": 'shop:"é 100%"'}) is None
    ((head, body),) = server.requests
    headers = headers_of(head)
    assert (head.partition("\r\n")[0], body) == ("POST /charges?dry=1 HTTP/1.1", b'{"order": 1}')
    assert headers["idempotency-key"] == f'"{KEY}"'
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["content-type"] == "application/json"
    assert headers["x-tenant"] == "a b"
    assert headers["onceward-root"].isascii()
    assert decoded(headers["onceward-root"]) == 'shop:"é 100%"'


@each("address", ["", "orders", "gopher:orders", ":orders", "SQS:orders"])
def test_an_address_of_no_known_scheme_is_refused(address):
    with pytest.raises(ValueError, match=r"eventbridge, .*http, https, .*sns, .*sqs"):
        open_target(address)


@each("scheme", ["", "Mail", "mail:", "7up", "sqs"])
def test_a_scheme_that_cannot_begin_an_address_or_is_ours_is_refused(scheme):
    with pytest.raises(ValueError, match=r"lower-case letters|one of onceward's own"):
        register(scheme, lambda _: RecordedTarget())


def test_a_registered_scheme_opens_one_target_for_each_address_until_it_is_registered_again():
    register("one-each", lambda _: RecordedTarget())
    first = open_target("one-each:a")
    assert open_target("one-each:a") is first is not open_target("one-each:b")
    register("one-each", lambda _: RecordedTarget())
    assert open_target("one-each:a") is not first


def test_addresses_with_numbers_in_them_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("onceward.outbox.targets._MOST", 5)
    for number in range(50):
        open_target(f"http://127.0.0.1/{number}")
    assert len(targets._opened) <= 5


def test_a_registered_target_signs_its_messages(endpoint):
    server = endpoint()
    sign = lambda message: {"Authorization": f"Hmac {len(message.body)}"}
    register("signed", lambda _: HttpTarget(server.url, headers=sign))
    assert open_target("signed:charges").send([OutboxMessage(KEY, "1234")]) == [None]
    assert headers_of(server.requests[0][0])["authorization"] == "Hmac 4"


def test_headers_that_cannot_be_made_are_asked_for_again(endpoint):
    def sign(message):
        raise KeyError("no token yet")

    told = HttpTarget(endpoint().url, headers=sign).send([OutboxMessage(KEY, "1")])
    assert [type(one) for one in told] == [KeyError]


PASSES = [302, 303, 307, 401, 403, 404, 407, 408, 409, 421, 423, 425, 429, 500, 501, 502, 503, 504, 599]
STAYS = [301, 308, 400, 402, 405, 406, 410, 411, 413, 415, 422, 451]


@each("status", [*PASSES, *STAYS])
def test_what_may_pass_is_sent_later_and_what_does_not_is_refused(endpoint, status):
    told = send(endpoint(answer(status, body="why")).url)
    assert type(told) is (MessageNotSent if status in PASSES else MessageRefused)
    assert f"answered {status}: 'why'" in str(told)


@each(("status", "told"), [(200, type(None)), (400, MessageRefused), (503, MessageNotSent)])
def test_content_that_cannot_be_read_does_not_change_what_a_status_means(endpoint, monkeypatch, status, told):
    monkeypatch.setattr(module, "_SOCKETS", Sockets(0.5))
    huge, half = (answer(status).replace(b"Length: 0", b"Length: " + size) for size in (b"99999999999", b"9"))
    for script in (
        once(huge),
        once(half),
        serve(half),
        serve(answer(status), half),
    ):  # too much, cut short, without an end
        server = endpoint(script=script)
        assert [type(send(server.url)), type(send(server.url))] == [told, told]
        assert len(server.requests) == 2


def test_an_error_does_not_show_a_secret_of_the_query(endpoint):
    told = send(f"{endpoint(answer(500)).url}/hook?token=secret&a=1")
    assert "/hook?token=***&a=1 answered 500" in str(told)


@each(
    ("headers", "seconds"),
    [
        ([], None),
        (["Retry-After: 7"], 7.0),
        (["Retry-After: 999999999999"], 86400.0),
        (["Retry-After: Wed, 21 Oct 2026 07:28:30 GMT", "Date: Wed, 21 Oct 2026 07:28:00 GMT"], 30.0),
        (["Retry-After: Wed, 21 Oct 2026 07:28:30 GMT"], None),
    ],
)
def test_a_retry_after_says_how_long_to_wait(endpoint, headers, seconds):
    told = send(endpoint(answer(429, *headers)).url)
    assert isinstance(told, MessageNotSent)
    assert told.retry_after == seconds


@each(
    "script",
    [once(), once(b"220 mail\r\n\r\n"), slow],
)
def test_a_request_without_an_answer_is_sent_later(endpoint, monkeypatch, script):
    monkeypatch.setattr(module, "_SOCKETS", Sockets(0.5))
    server = endpoint(script=script)
    told = send(server.url)
    assert type(told) is MessageNotSent
    assert script is not slow or "no answer in time" in str(told) or "timed out" in str(told)
    assert [headers_of(head)["idempotency-key"] for head, _ in server.requests] == [f'"{KEY}"']


def test_ssl_cert_file_says_whom_to_trust_and_aws_ca_bundle_does_not(endpoint, tmp_path, monkeypatch):
    chain, private = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, private)
    server = endpoint(tls=tls)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(chain))
    told = send(server.url)
    assert type(told) is MessageNotSent
    assert "certificate could not be verified" in str(told)
    assert "SSL_CERT_FILE" in str(told)
    assert server.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    assert send(server.url) is None


def test_a_certificate_that_nats_cannot_verify_refuses_no_message(monkeypatch):
    monkeypatch.setattr("nats.connect", AsyncMock(side_effect=ssl.SSLCertVerificationError("expired")))
    (told,) = NatsTarget("nats://127.0.0.1:1/orders").send([OutboxMessage(KEY, "1")])
    assert type(told) is MessageNotSent  # though the error is a ValueError, too


@each(
    ("wrong", "says"),
    [
        ({"delay": 1}, "no delay="),
        ({"group": "g"}, "no group="),
        ({"headers": {"Host": "x"}}, "onceward itself writes it"),
        ({"headers": {"a b": "x"}}, "the header 'a b'"),
        ({"headers": {"a": "x\r\nb: y"}}, "visible ASCII"),
        ({"body": "\ud800"}, "surrogates"),
    ],
)
def test_what_no_endpoint_can_take_is_refused_without_a_request(endpoint, wrong, says):
    server = endpoint()
    bad = OutboxMessage(KEY, **({"body": "1"} | wrong))
    with pytest.raises(ValueError, match=says):
        HttpTarget(server.url).check(bad)
    assert [type(one) for one in HttpTarget(server.url).send([bad])] == [MessageRefused]
    assert server.requests == []


def test_a_header_that_is_not_possible_does_not_show_its_value(endpoint):
    (told,) = HttpTarget(endpoint().url, headers=lambda _: {"Authorization": "hush\n"}).send([OutboxMessage(KEY, "1")])
    assert "Authorization: its value must be" in str(told)
    assert "hush" not in str(told)


@each("address", ["https://user:hush/path", "http://host:port/", "https://a@b/", "https://é.example/", "http://h/#a"])
def test_an_address_that_is_not_valid_is_refused_without_its_password(address):
    with pytest.raises(ValueError, match="URL") as refused:
        open_target(address)
    assert "hush" not in "".join(traceback.format_exception(refused.value)).replace(address, "")
