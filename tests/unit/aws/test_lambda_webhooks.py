"""Webhooks in Lambda: what API Gateway, a function URL and a load balancer pass on reaches the receiver as it was sent."""

import base64
import hashlib
import hmac

import pytest

from onceward import Once
from onceward.aws import MalformedEvent, on_webhook
from onceward.web.webhooks import GitHub, WebhookReceiver, meta_handshake
from tables import each

BODY = b'{"zen": "\xc3\xbc"}'
HEADERS = {
    "X-Hub-Signature-256": "sha256=" + hmac.digest(b"secret", BODY, hashlib.sha256).hex(),
    "X-GitHub-Delivery": "d1",
    "X-GitHub-Event": "ping",
}


def url(method="POST", body=BODY, query="", headers=HEADERS):
    """A function URL's event. It has names of headers in lower case."""
    return {
        "version": "2.0",
        "rawPath": "/github",
        "rawQueryString": query,
        "headers": {name.lower(): value for name, value in headers.items()},
        "requestContext": {
            "http": {"method": method},
            "domainName": "x.lambda-url.eu-west-1.on.aws",
            "stage": "$default",
        },
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }


def rest(method="POST", body=BODY, query=None, headers=HEADERS):
    """An event of a REST API."""
    return {
        "httpMethod": method,
        "path": "/github",
        "headers": headers,
        "queryStringParameters": query,
        "requestContext": {},
        "body": body.decode(),
        "isBase64Encoded": False,
    }


def receiver(handler, **options):
    return WebhookReceiver(Once("memory:"), GitHub("secret"), handler, name="github", **options)


@each("made", [url, rest])
@each("is_async", [False, True])
def test_an_event_is_handled_once_and_a_forged_one_never(made, is_async):
    handled = []

    def handle(event):
        handled.append((event.id, event.kind, event.data["zen"]))

    async def handle_async(event):
        handle(event)

    handler = on_webhook(receiver(handle_async if is_async else handle))
    assert [handler(made(), None)["statusCode"] for _ in range(2)] == [200, 200]
    assert handled == [("d1", "ping", "ü")]
    assert handler(made(body=BODY + b" "))["statusCode"] == 401
    with pytest.raises(MalformedEvent):
        handler({"Records": []})


def test_a_handshake_gets_the_query():
    handler = on_webhook(receiver(print, handshake=meta_handshake("mine")))
    asked = "hub.mode=subscribe&hub.verify_token=mine&hub.challenge=7"
    assert handler(url("GET", b"", asked))["body"] == "7"
    assert handler(rest("GET", b"", dict(pair.split("=") for pair in asked.split("&"))))["body"] == "7"


def test_a_failure_is_raised_and_comes_again():
    handled = []

    def handle(event):
        handled.append(event.id)
        if len(handled) == 1:
            raise RuntimeError("bad")

    handler = on_webhook(receiver(handle))
    with pytest.raises(RuntimeError):
        handler(url())
    assert handler(url())["statusCode"] == 200
    assert handled == ["d1", "d1"]


def test_what_lambda_would_not_finish_is_refused():
    with pytest.raises(ValueError, match="accept=True"):
        on_webhook(receiver(print, accept=True))
    with pytest.raises(TypeError, match="give a WebhookReceiver"):
        on_webhook("sqlite:///x")
