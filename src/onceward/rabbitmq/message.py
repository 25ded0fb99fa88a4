"""Messages of RabbitMQ as deliveries."""

import hashlib
from functools import partial
from typing import Final

from aio_pika.abc import AbstractIncomingMessage

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_queues import header_of
from onceward.rabbitmq.connection import NO_ID

SOURCE: Final = "rabbitmq"


def message_delivery(message: AbstractIncomingMessage, queue: str) -> Delivery:
    """Return a message as a delivery. Its default key is the header ``Idempotency-Key``, or the message id."""
    delivery = Delivery(SOURCE, message)
    delivery.body = message.body
    delivery.header = partial(header_of, message.headers)
    delivery.destination = queue
    delivery.id = own_id(message) or f"sha256:{hashlib.sha256(message.body).hexdigest()}"
    delivery.key = delivery.header(KEY_HEADER) or own_id(message)
    return delivery


def own_id(message: AbstractIncomingMessage) -> str | None:
    """Return the id that its sender gave a message."""
    return None if not message.message_id or message.message_id.startswith(NO_ID) else message.message_id
