"""Messages of JetStream as deliveries, and as dead letters."""

from collections.abc import Mapping
from typing import Final

from nats.aio.msg import Msg

from onceward.consumers.dead_letters import KEY_HEADER, OURS
from onceward.consumers.delivery import Delivery

SOURCE: Final = "nats"
ID_HEADER: Final = "Nats-Msg-Id"
_SERVERS: Final = "nats-"  # headers that the server acts on; a dead letter must not have those of its message


def message_delivery(message: Msg) -> Delivery:
    """Return a message as a delivery. Its default key is the header ``Idempotency-Key``, its ``Nats-Msg-Id``, or its place."""
    place = place_of(message)
    delivery = Delivery(SOURCE, message)
    delivery.body = message.data
    delivery.header = (message.headers or {}).get
    delivery.destination = message.subject
    delivery.id = place
    # The time is part of it, because a stream that is made again counts from 1 again.
    stored = f"{place}/{round(message.metadata.timestamp.timestamp() * 1e6)}"
    delivery.key = delivery.header(KEY_HEADER) or delivery.header(ID_HEADER) or stored
    return delivery


def place_of(message: Msg) -> str:
    """Return where a message is: its stream and its number there."""
    return f"{message.metadata.stream}/{message.metadata.sequence.stream}"


def letter_headers(message: Msg, told: Mapping[str, str], dead: str) -> dict[str, str]:
    """Return the headers of a message's dead letter at the subject ``dead``: its own and those that are ``told``."""
    own = {
        name: text
        for name, text in (message.headers or {}).items()
        if not (name.lower().startswith(_SERVERS) or name.lower() in OURS)
    }
    return {**own, **told, ID_HEADER: f"{dead}:{place_of(message)}"}  # JetStream drops a repetition
