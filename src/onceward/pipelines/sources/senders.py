"""Senders of events who sign nothing: they give a token and an Idempotency-Key."""

import hmac
from collections.abc import Mapping

from onceward.http.header import read_key
from onceward.keys.json_reading import NotJson, read_json
from onceward.web.webhooks.events import SignatureRefused, WebhookEvent


class SendersWithKeys:
    """Verifies the token of a sender, and takes the key from the header Idempotency-Key.

    Args:
        tokens: those that are good.

    Raises:
        ValueError: a token is missing or empty.
    """

    def __init__(self, *tokens: str) -> None:
        if not tokens or not all(tokens):
            raise ValueError("the token is missing or empty: anybody could send")
        self._tokens = [token.encode() for token in tokens]

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        kind, _, sent = headers.get("authorization", "").partition(" ")
        # All are compared, always.
        right = [hmac.compare_digest(sent.strip().encode(), token) for token in self._tokens]
        if kind.lower() != "bearer" or not any(right):
            raise SignatureRefused("its token is missing or wrong")
        if "idempotency-key" not in headers:
            raise ValueError("give the header Idempotency-Key")
        key = read_key([headers["idempotency-key"]])
        try:
            data = read_json(body)
        except NotJson as error:
            raise ValueError(f"the payload is {error}") from error
        return WebhookEvent(key, None, data)
