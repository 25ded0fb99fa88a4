"""What a provider delivers, once its signature is verified."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from onceward.errors import OncewardError
from onceward.http.answer import Answer
from onceward.keys.json_reading import NotJson, read_json


class SignatureRefused(OncewardError):
    """A delivery is not signed by the provider, or was signed too long ago. Nothing is recorded of it.

    Cause: The secret is another one, a proxy has changed the body, the clock of this machine is wrong, or somebody forges events.

    Fix: Compare the secret with the provider's, and give the receiver the body as it came.
    """


class WebhookEvent(NamedTuple):
    """An event whose signature is right.

    Attributes:
        id: what all deliveries of the event have in common: the key.
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
            An event; a list of them, each of which has its own key; or the answer to a delivery that is none, such as a test.

        Raises:
            SignatureRefused: the signature is wrong, missing or too old.
            ValueError: the signature is right, and there is no event in the body.
        """


def parsed(body: bytes) -> dict[str, object]:
    """Return the JSON object in a body; raises ValueError."""
    try:
        data = read_json(body)
    except NotJson as error:
        raise ValueError(f"the body has no JSON object: the payload is {error}") from error
    if not isinstance(data, dict):
        raise ValueError("the body has no JSON object")
    return data


def objects_of(data: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects in a body; raises ValueError if there is none."""
    found = data.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"there is no list {name}, which has the events")
    return found


def text_of(data: Mapping[str, object], name: str) -> str:
    """Return a text of a body or of headers; raises ValueError if there is none."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"there is no {name.lstrip('*.')}, which is its key")
    return value


def text_or_none(value: object) -> str | None:
    """Return a text, or None for anything else."""
    return value if isinstance(value, str) and value else None
