"""Webhooks in Lambda: what API Gateway, a function URL and a load balancer pass on reaches the receiver as it was sent."""

import base64
import hashlib
import hmac

import pytest

from onceward import Once
from onceward.aws import MalformedEvent, on_webhook
from onceward.web.webhooks import GitHub, WebhookReceiver, meta_handshake
from tables import each
from web.api_events import rest, url

BODY = '{"zen": "ü"}'
HEADERS = [
    ("X-Hub-Signature-256", "sha256=" + hmac.digest(b"secret", BODY.encode(), hashlib.sha256).hex()),
    ("X-GitHub-Delivery", "d1"),
    ("X-GitHub-Event", "ping"),
]


def sent(source, body=BODY):
    """A webhook, as API Gateway or a function URL passes it on."""
    if source is url:
        body, more = base64.b64encode(body.encode()).decode(), {"isBase64Encoded": True}
    return source("/github", body=body, headers=HEADERS, **(more if source is url else {}))


def receiver(handler, **options):
    return WebhookReceiver(Once("memory:"), GitHub("secret"), handler, name="github", **options)


@each("source", [url, rest])
@each("is_async", [False, True])
def test_an_event_is_handled_once_and_a_forged_one_never(source, is_async):
    handled = []

    def handle(event):
        handled.append((event.id, event.kind, event.data["zen"]))

    async def handle_async(event):
        handle(event)

    handler = on_webhook(receiver(handle_async if is_async else handle))
    assert [handler(sent(source), None)["statusCode"] for _ in range(2)] == [200, 200]
    assert handled == [("d1", "ping", "ü")]
    assert handler(sent(source, BODY + " "))["statusCode"] == 401
    with pytest.raises(MalformedEvent):
        handler({"Records": []})


def test_a_handshake_gets_the_query():
    handler = on_webhook(receiver(print, handshake=meta_handshake("mine")))
    asked = "hub.mode=subscribe&hub.verify_token=mine&hub.challenge=7"
    assert handler(url(method="GET", body="", rawQueryString=asked))["body"] == "7"
    query = dict(pair.split("=") for pair in asked.split("&"))
    event = rest(method="GET", body="", queryStringParameters=query, multiValueQueryStringParameters=None)
    assert handler(event)["body"] == "7"


def test_a_failure_is_raised_and_comes_again():
    handled = []

    def handle(event):
        handled.append(event.id)
        if len(handled) == 1:
            raise RuntimeError("bad")

    handler = on_webhook(receiver(handle))
    with pytest.raises(RuntimeError):
        handler(sent(url))
    assert handler(sent(url))["statusCode"] == 200
    assert handled == ["d1", "d1"]


def test_what_lambda_would_not_finish_is_refused():
    with pytest.raises(ValueError, match="accept=True"):
        on_webhook(receiver(print, accept=True))
    with pytest.raises(TypeError, match="give a WebhookReceiver"):
        on_webhook("sqlite:///x")
