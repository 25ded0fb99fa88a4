"""Lambda's events from Amazon MQ: RabbitMQ and ActiveMQ.

Their form: Lambda Developer Guide, "Using Lambda with Amazon MQ".
"""

from functools import partial
from typing import Final, Unpack

from onceward.aws.events.handler import Decorator, handling
from onceward.aws.events.records import (
    at,
    filled,
    from_base64,
    grouped,
    needed,
    source_of,
    text_at,
    text_of_bytes,
    unfit,
)
from onceward.aws.events.response import raise_failed
from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.delivery import Delivery, DeliveryOptions
from onceward.once import Once

RABBITMQ: Final = "aws:rmq"
ACTIVEMQ: Final = "aws:mq"


def on_rabbitmq(once: Once, *, concurrency: int = 1, **options: Unpack[DeliveryOptions]) -> Decorator[None]:
    """Make a function the handler of the messages of a RabbitMQ queue at Amazon MQ, each handled once.

    The payload is the message's body. The key is by default the header ``Idempotency-Key``, which the outbox sets, else the message
    id; many publishers set neither: then give ``key=``.

    Args:
        once: the ledger and the defaults of the policy.
        concurrency: how many messages of one event are handled at a time.
        **options: see :class:`DeliveryOptions`. Give ``max_attempts=``: a message that always fails comes again with its whole batch.

    Returns:
        A decorator. The handler answers None, and raises :class:`BatchFailed` if a message failed. Lambda then delivers the whole
        batch again (Lambda Developer Guide, "Using Lambda with Amazon MQ").
        Messages that are done do not run again. It raises :class:`MalformedEvent` if the event is not of RabbitMQ.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return handling(once, "on_rabbitmq", _deliveries, raise_failed, concurrency=concurrency, **options)


def on_activemq(once: Once, *, concurrency: int = 1, **options: Unpack[DeliveryOptions]) -> Decorator[None]:
    """Make a function the handler of the messages of an ActiveMQ queue at Amazon MQ, each handled once.

    As :func:`on_rabbitmq`; the key is by default the message's id. A producer that sends twice makes a second id.
    """
    return handling(once, "on_activemq", _of_activemq, raise_failed, concurrency=concurrency, **options)


def _of_activemq(event: object) -> list[Delivery]:
    source_of(event, ACTIVEMQ)
    messages = at(event, "messages")
    if not isinstance(messages, list):
        raise unfit(event, "events of ActiveMQ, which have a list of messages")
    return [filled(ACTIVEMQ, message, _jms_message) for message in messages]


def _jms_message(delivery: Delivery) -> None:
    delivery.destination = text_at(delivery.raw, "destination", "physicalName")
    delivery.header = partial(text_at, at(delivery.raw, "properties"))
    delivery.id = delivery.key = text_at(delivery.raw, "messageID")
    delivery.body = from_base64(needed(delivery.raw, "data"), "data")


def _deliveries(event: object) -> list[Delivery]:
    source_of(event, RABBITMQ)
    messages = grouped(event, "rmqMessagesByQueue", "events of RabbitMQ, which have a dict of rmqMessagesByQueue")
    return [filled(RABBITMQ, message, partial(_message, queue=name)) for name, message in messages]


def _message(delivery: Delivery, queue: str) -> None:
    delivery.destination = queue.partition("::")[0]  # the rest is the virtual host
    delivery.header = partial(_header, at(delivery.raw, "basicProperties", "headers"))
    delivery.id = text_at(delivery.raw, "basicProperties", "messageId")
    delivery.key = delivery.header(KEY_HEADER) or delivery.id
    delivery.body = from_base64(needed(delivery.raw, "data"), "data")


def _header(headers: object, name: str) -> str | None:
    found = at(headers, name)
    return str(found) if isinstance(found, str | int | float) else text_of_bytes(at(found, "bytes"))
