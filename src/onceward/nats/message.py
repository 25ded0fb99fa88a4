"""Messages of JetStream as deliveries."""

from typing import Final

from nats.aio.msg import Msg

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.delivery import Delivery
from onceward.consumers.nats_letters import ID_HEADER

SOURCE: Final = "nats"


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
