"""CloudEvents 1.0 over HTTP: github.com/cloudevents/spec, "HTTP Protocol Binding" and "HTTP 1.1 Web Hooks for Event Delivery".

Nothing is signed: senders give a token.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from onceward.web.webhooks.events import Verified, WebhookEvent, json_of, text_of, text_or_none
from onceward.web.webhooks.signatures import check_bearer, check_secrets

_STRUCTURED: Final = "application/cloudevents"
_BATCH: Final = "application/cloudevents-batch"


class CloudEvents:
    """CloudEvents from senders with your token: binary, structured in JSON, and batches of several events. The key is source and id.

    ``data`` is that of the event: decoded from JSON, or text, or bytes.

    Args:
        token: what a sender gives as ``Authorization: Bearer TOKEN``; several while you change it.
    """

    def __init__(self, *token: str) -> None:
        self._tokens = check_secrets(token)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        check_bearer(headers, self._tokens)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not kind.startswith(_STRUCTURED):
            attributes = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
            return _event(attributes, _data(kind, body))
        if not kind.endswith("+json"):
            raise ValueError(f"the events are in {kind}: send them as JSON")
        document = json_of(body)
        if not kind.startswith(_BATCH):
            return _structured(document)
        if not isinstance(document, list):
            raise ValueError("the body is not a list of events")
        return list(map(_structured, document))


def _structured(event: object) -> WebhookEvent:
    if not isinstance(event, dict):
        raise ValueError("the body has no event")
    data = event.get("data")
    if "data_base64" in event:
        try:
            data = base64.b64decode(str(event["data_base64"]), validate=True)
        except binascii.Error as error:
            raise ValueError("data_base64 is not base64") from error
    return _event(event, data)


def _event(attributes: Mapping[str, object], data: object) -> WebhookEvent:
    source = text_of(attributes, "source")
    if any(map(str.isspace, source)):  # else two events could have one key
        raise ValueError(f"the source {source!r} has white space, which a URI-reference cannot have")
    return WebhookEvent(f"{source} {text_of(attributes, 'id')}", text_or_none(attributes.get("type")), data, source)


def _data(kind: str, body: bytes) -> object:
    if not body:
        return None
    if kind == "application/json" or kind.endswith("+json"):
        return json_of(body)
    return body.decode() if kind.startswith("text/") else body
