"""Webhooks that take effect once: the signature is verified first, and the event's id is the key.

    hook = WebhookReceiver(once, GitHub(secret), on_github, name="webhooks.github")
    app.add_api_route("/github", endpoint(hook), methods=["POST"])    # of onceward.web.webhooks.starlette

``senders.py``, ``keypairs.py`` and ``cloudevents.py`` have the rules of each sender, ``receiver.py`` the answers, the other modules a
framework each.
"""

from onceward.web.webhooks.cloudevents import CloudEvents
from onceward.web.webhooks.events import (
    SignatureRefused,
    WebhookEvent,
    WebhookRequest,
    WebhookVerifier,
    cloudevents_handshake,
    graph_handshake,
    meta_handshake,
)
from onceward.web.webhooks.keypairs import Discord, PayPal, SendGrid, Sns
from onceward.web.webhooks.receiver import WebhookReceiver
from onceward.web.webhooks.senders import (
    Adyen,
    GitHub,
    GitLab,
    LemonSqueezy,
    Linear,
    Meta,
    MicrosoftGraph,
    Paddle,
    Shopify,
    Slack,
    Square,
    StandardWebhooks,
    Stripe,
    Twilio,
    Zoom,
)
from onceward.web.webhooks.signatures import HmacSender

__all__ = [
    "Adyen",
    "CloudEvents",
    "Discord",
    "GitHub",
    "GitLab",
    "HmacSender",
    "LemonSqueezy",
    "Linear",
    "Meta",
    "MicrosoftGraph",
    "Paddle",
    "PayPal",
    "SendGrid",
    "Shopify",
    "SignatureRefused",
    "Slack",
    "Sns",
    "Square",
    "StandardWebhooks",
    "Stripe",
    "Twilio",
    "WebhookEvent",
    "WebhookReceiver",
    "WebhookRequest",
    "WebhookVerifier",
    "Zoom",
    "cloudevents_handshake",
    "graph_handshake",
    "meta_handshake",
]
