"""The key of a CloudEvent, wherever it comes from: ``key=cloud_event_key`` for workers of any broker, and for Lambda's events.

CloudEvents 1.0, github.com/cloudevents/spec: the producer makes ``source`` and ``id`` together unique for each event, and a repetition
has the same ones. Binary events have them in headers, and structured ones in the JSON of the body.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from onceward.consumers.delivery import Delivery
from onceward.errors import KeyMissing

__all__ = ["cloud_event_key"]

# How the headers' names begin: in Kafka; in HTTP and NATS; in AMQP, where both are allowed.
_BEGINNINGS: Final = ("ce_", "ce-", "cloudEvents:", "cloudEvents_")


def cloud_event_key(delivery: Delivery) -> str:
    """Return ``source`` and ``id`` of the CloudEvent in a delivery, as ``"SOURCE ID"``: the key that webhooks of CloudEvents have, too.

    Args:
        delivery: the message or record; workers give it.

    Raises:
        KeyMissing: it is not a CloudEvent, lacks one of the two, or its source has white space.
    """
    for beginning in _BEGINNINGS:
        source, event = delivery.header(f"{beginning}source"), delivery.header(f"{beginning}id")
        if source and event:
            if beginning == "ce-":  # the bindings for HTTP and NATS encode the values
                source, event = unquote(source), unquote(event)
            return _key(delivery, source, event)
    data = delivery.data
    if isinstance(data, Mapping) and "specversion" in data:
        source, event = data.get("source"), data.get("id")
        if isinstance(source, str) and isinstance(event, str) and source and event:
            return _key(delivery, source, event)
    raise KeyMissing(f"{delivery.named} is not a CloudEvent: its headers and its JSON lack a source or an id")


def _key(delivery: Delivery, source: str, event: str) -> str:
    if any(map(str.isspace, source)):  # else two events could have one key
        raise KeyMissing(f"{delivery.named}: its source {source!r} has white space, which a URI-reference cannot have")
    return f"{source} {event}"
