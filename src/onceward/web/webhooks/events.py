"""What a provider delivers, once its signature is verified."""

import hmac
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

from onceward.errors import OncewardError
from onceward.http.answer import Answer
from onceward.keys.json_reading import NotJson, read_json

T = TypeVar("T")


class SignatureRefused(OncewardError):
    """A delivery is not signed by the provider, or was signed too long ago. The delivery is not recorded.

    Cause: The secret is wrong, a proxy has changed the body, the clock of this machine is wrong, or somebody forges events.

    Fix: Compare the secret with the provider's secret, and give the receiver the unchanged body.
    """


class WebhookEvent(NamedTuple):
    """An event whose signature is right.

    Attributes:
        id: the event's id, the same in all deliveries: the key.
        kind: its type, such as "invoice.paid"; None if the provider has none.
        data: the body, decoded from JSON.
        source: where it comes from, such as a shop's domain or a topic's ARN; None if there is one source.
    """

    id: str
    kind: str | None
    data: object
    source: str | None = None


class WebhookRequest(NamedTuple):
    """A request as it came, for a handshake: nothing of it is verified.

    Attributes:
        method: in capitals, such as GET.
        query: the parameters of its query.
        headers: by their names in lower case.
        body: as it came.
    """

    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


Verified = WebhookEvent | list[WebhookEvent] | Answer


class WebhookVerifier(Protocol):
    """A provider's rules. Write your own for another provider, with its library if it has one."""

    def verify(self, headers: Mapping[str, str], body: bytes) -> "Verified":
        """Return the event of a delivery, or its events. A receiver that is awaited calls it in a thread.

        Args:
            headers: by their names in lower case.
            body: as it came.

        Returns:
            An event, or a list of events with a key each. For a delivery without an event, such as a test, the answer
            to it.

        Raises:
            SignatureRefused: the signature is wrong, missing or too old.
            ValueError: the signature is right, and there is no event in the body.
            OSError: the signature cannot be checked now. The sender gets 503, and delivers again.
        """


def json_of(body: bytes) -> object:
    """Return the JSON in a body; raises ValueError."""
    try:
        return read_json(body)
    except NotJson as error:
        raise ValueError(f"the body has no JSON: the payload is {error}") from error


def parse_object(body: bytes) -> dict[str, object]:
    """Return the JSON object in a body; raises ValueError."""
    data = json_of(body)
    if not isinstance(data, dict):
        raise ValueError("the body has no JSON object")
    return data


def unverified(read: Callable[[], T]) -> T:
    """Return what is in a body that is not verified yet; raises SignatureRefused, because anybody can have sent it."""
    try:
        return read()
    except ValueError as error:
        raise SignatureRefused(str(error)) from error


def objects_of(data: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects in a body; raises ValueError if there is none."""
    objects = data.get(name)
    if not isinstance(objects, list) or not objects or not all(isinstance(one, dict) for one in objects):
        raise ValueError(f"the body has no list {name} of events")
    return objects


def text_of(data: Mapping[str, object], name: str) -> str:
    """Return a text of a body or of headers; raises ValueError if there is none."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"there is no {name.lstrip('*.')}, which is its key")
    return value


def text_or_none(value: object) -> str | None:
    """Return a text, or None for anything else."""
    return value if isinstance(value, str) and value else None


# --- handshakes: answers to senders that ask before they deliver. Nothing is verified before, and nothing recorded ---
TEXT: Final = (("Content-Type", "text/plain; charset=utf-8"),)


def meta_handshake(verify_token: str) -> Callable[[WebhookRequest], Answer | None]:
    """Return the handshake of Meta's webhooks: developers.facebook.com, "Webhooks", "Validating verification requests".

    Args:
        verify_token: the text that you gave Meta with the address. Another one gets 403.
    """
    if not verify_token:
        raise ValueError("verify_token is empty: give the text that you gave Meta with the address")

    def shake(request: WebhookRequest) -> Answer | None:
        if request.method != "GET" or request.query.get("hub.mode") != "subscribe":
            return None
        if not hmac.compare_digest(request.query.get("hub.verify_token", "").encode(), verify_token.encode()):
            return Answer(403, TEXT, b"another verify token")
        return Answer(200, TEXT, request.query.get("hub.challenge", "").encode())

    return shake


def graph_handshake(request: WebhookRequest) -> Answer | None:
    """Answer the handshake of Microsoft Graph: learn.microsoft.com, "Receive change notifications through webhooks"."""
    token = request.query.get("validationToken")
    return None if token is None else Answer(200, TEXT, token.encode())


def cloudevents_handshake(*origins: str) -> Callable[[WebhookRequest], Answer | None]:
    """Return the handshake in which a sender asks whether it may deliver: "Web Hooks for Event Delivery", section 4.

    Args:
        *origins: the names of the senders that may deliver, such as ``eventgrid.azure.net``. Others get 403.
    """

    def shake(request: WebhookRequest) -> Answer | None:
        origin = request.headers.get("webhook-request-origin")
        if request.method != "OPTIONS" or origin is None:
            return None
        if origin not in origins:
            return Answer(403, [], b"")
        return Answer(200, [("WebHook-Allowed-Origin", origin), ("WebHook-Allowed-Rate", "*"), ("Allow", "POST")], b"")

    return shake
