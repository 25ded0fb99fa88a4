"""Webhooks that take effect once: the signature is verified first, and the event's id is the key.

    hook = WebhookReceiver(once, GitHub(secret), on_github, name="webhooks.github")
    app.add_api_route("/github", endpoint(hook), methods=["POST"])    # of onceward.web.webhooks.starlette

``signatures.py`` and ``sns.py`` have the rules of each provider, ``receiver.py`` the answers, the other modules a framework each.
"""

from onceward.web.webhooks.events import SignatureRefused, WebhookEvent, WebhookRequest, WebhookVerifier
from onceward.web.webhooks.receiver import WebhookReceiver, graph_handshake, meta_handshake
from onceward.web.webhooks.signatures import GitHub, Shopify, Slack, StandardWebhooks, Stripe
from onceward.web.webhooks.sns import Sns

__all__ = [
    "GitHub",
    "Shopify",
    "SignatureRefused",
    "Slack",
    "Sns",
    "StandardWebhooks",
    "Stripe",
    "WebhookEvent",
    "WebhookReceiver",
    "WebhookRequest",
    "WebhookVerifier",
    "graph_handshake",
    "meta_handshake",
]
