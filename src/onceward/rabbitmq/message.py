"""Messages of RabbitMQ as deliveries, and as the ledger keeps them."""

import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec
from aio_pika.abc import AbstractIncomingMessage

from onceward.consumers.dead_letters import KEY_HEADER, OURS
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_queues import header_of
from onceward.errors import OncewardError
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


class KeptMessage(NamedTuple):
    """A message that the ledger keeps."""

    queue: str
    id: str | None
    body: bytes
    headers: Mapping[str, str]
    content_type: str | None


def kept_text(message: AbstractIncomingMessage, queue: str) -> str:
    """Return the text for a record of a message: JSON that a person can read, complete enough to send the message again."""
    try:
        body: dict[str, str] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"base64": base64.b64encode(message.body).decode()}
    headers = {name: header_of(message.headers, name) for name in message.headers if name not in OURS}
    told = {
        "id": own_id(message),
        "queue": queue,
        **body,
        "headers": {name: value for name, value in headers.items() if value is not None and not name.startswith("x-")},
        "content_type": message.content_type,
    }
    return msgspec.json.encode({"message": told}).decode()


def read_kept(text: str) -> KeptMessage:
    """Return the message that a record keeps.

    Raises:
        OncewardError: the text is not a message of RabbitMQ.
    """
    try:
        told = msgspec.json.decode(text)["message"]
        body = base64.b64decode(told["base64"]) if "base64" in told else told["body"].encode()
        return KeptMessage(told["queue"], told["id"], body, told["headers"], told["content_type"])
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise OncewardError(f"the record's text is not a message of RabbitMQ: {error!r}") from error


def alike(one: str, other: str) -> bool:
    """Return whether two texts of :func:`kept_text` are of equal messages. An unreadable text equals no other."""
    try:
        return read_kept(one)[1:4] == read_kept(other)[1:4]
    except OncewardError:
        return False
