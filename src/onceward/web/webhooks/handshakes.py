"""Answers to senders that ask before they deliver: ``handshake=`` of a receiver. Nothing is verified before, and nothing recorded."""

import hmac
from collections.abc import Callable
from typing import Final

from onceward.core.arguments import check_type
from onceward.http.answer import Answer
from onceward.web.webhooks.events import WebhookRequest

_TEXT: Final = (("Content-Type", "text/plain; charset=utf-8"),)


def meta_handshake(verify_token: str) -> Callable[[WebhookRequest], Answer | None]:
    """Return the handshake of Meta's webhooks: developers.facebook.com, "Webhooks", "Validating verification requests".

    Args:
        verify_token: the text that you gave Meta with the address. Another one gets 403.
    """
    check_type("meta_handshake(verify_token)", verify_token, str, "the text that you gave Meta")
    if not verify_token:
        raise ValueError("verify_token is empty: give the text that you gave Meta with the address")

    def shake(request: WebhookRequest) -> Answer | None:
        if request.method != "GET" or request.query.get("hub.mode") != "subscribe":
            return None
        if not hmac.compare_digest(request.query.get("hub.verify_token", "").encode(), verify_token.encode()):
            return Answer(403, _TEXT, b"another verify token")
        return Answer(200, _TEXT, request.query.get("hub.challenge", "").encode())

    return shake


def graph_handshake(request: WebhookRequest) -> Answer | None:
    """The handshake of Microsoft Graph: learn.microsoft.com, "Receive change notifications through webhooks"."""
    token = request.query.get("validationToken")
    return None if token is None else Answer(200, _TEXT, token.encode())


def cloudevents_handshake(*origins: str) -> Callable[[WebhookRequest], Answer | None]:
    """Return the handshake in which a sender asks whether it may deliver: "Web Hooks for Event Delivery", section 4.

    Args:
        *origins: the senders that may, by the names that they give, such as ``eventgrid.azure.net``. Others get 403.
    """

    def shake(request: WebhookRequest) -> Answer | None:
        origin = request.headers.get("webhook-request-origin")
        if request.method != "OPTIONS" or origin is None:
            return None
        if origin not in origins:
            return Answer(403, [], b"")
        return Answer(200, [("WebHook-Allowed-Origin", origin), ("WebHook-Allowed-Rate", "*"), ("Allow", "POST")], b"")

    return shake
