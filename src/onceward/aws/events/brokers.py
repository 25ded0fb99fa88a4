"""Lambda's events of Kafka topics, from Amazon MSK or your own cluster, and from Amazon MQ: RabbitMQ and ActiveMQ.

Their form: Lambda Developer Guide, "Using Lambda with Apache Kafka" and "Using Lambda with Amazon MQ".
"""

from functools import partial
from typing import Final, Unpack

from onceward.aws.events.handler import Decorator, ReportOptions, Response, handling, raise_failed, report
from onceward.aws.events.records import (
    at,
    by_name,
    fill_in,
    from_base64,
    require_text,
    source_of,
    text_at,
    text_of_bytes,
    unfit,
)
from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.delivery import Delivery, DeliveryOptions, MalformedRecord
from onceward.once import Once

KAFKA: Final = (
    "aws:kafka",
    "SelfManagedKafka",
    "aws:SelfManagedKafka",
)  # the second is documented, the third was observed


def on_kafka(once: Once, *, concurrency: int = 1, **options: Unpack[ReportOptions]) -> Decorator[Response]:
    """Make a function the handler of a topic's records, each handled once, and those of a partition in order.

    The payload is the decoded value, None for a deleted key. By default the key is the header ``Idempotency-Key``. Without
    that header it is the cluster's ARN, the topic, the partition, the offset and the record's timestamp. Your own cluster has no ARN,
    so a record there needs a timestamp.

    Args:
        once: the ledger and the defaults of the policy.
        concurrency: how many partitions of one event are handled at a time.
        **options: see :class:`ReportOptions`. A mapping of Kafka has ``ReportBatchItemFailures`` in provisioned mode only.

    Returns:
        A decorator. The handler answers
        ``{"batchItemFailures": [{"itemIdentifier": {"partition": "topic-0", "offset": 15}}]}``
        with the record that failed in each partition. It and all later ones come again; those have not begun (Lambda Developer
        Guide, "Configuring error handling controls for Kafka event sources"). It raises :class:`MalformedEvent` if the
        event is not of Kafka, and :class:`BatchFailed` if a record that failed has no offset to be reported by.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return report(
        once,
        "on_kafka",
        _of_kafka,
        group=lambda delivery: delivery.group,
        concurrency=concurrency,
        identify=_identifier,
        **options,
    )


def _identifier(delivery: Delivery) -> dict[str, object]:
    assert isinstance(delivery.id, tuple)
    return {"partition": delivery.id[0], "offset": delivery.id[1]}


def _of_kafka(event: object) -> list[Delivery]:
    source = source_of(event, *KAFKA)
    records = by_name(event, "records", "events of Kafka, which have a dict of records by topic and partition")
    cluster = text_at(event, "eventSourceArn")  # your own cluster has only a list of servers, which can change
    return [fill_in(source, record, partial(_kafka_record, cluster=cluster, group=name)) for name, record in records]


def _kafka_record(delivery: Delivery, cluster: str | None, group: str) -> None:
    record, delivery.group, delivery.place = delivery.raw, group, f"in {group}"
    topic, partition, offset = require_text(record, "topic"), _number(record, "partition"), _number(record, "offset")
    delivery.id = (f"{topic}-{partition}", offset)
    delivery.place = f"topic {topic}, partition {partition}, offset {offset}"
    timestamp = at(record, "timestamp")
    moment = (timestamp,) if type(timestamp) is int and timestamp > 0 else ()
    delivery.header = partial(_kafka_header, record)
    delivery.key = delivery.header(KEY_HEADER)
    if delivery.key is None and (cluster or moment):
        delivery.key = (*([cluster] if cluster else []), topic, partition, offset, *moment)
    if at(record, "value") is not None:
        delivery.body = from_base64(require_text(record, "value"), "the value")


def _kafka_header(record: object, name: str) -> str | None:
    """Return the text of a record's header, the last one of this name."""
    headers = at(record, "headers")
    values = [at(header, name) for header in headers] if isinstance(headers, list) else []
    return text_of_bytes(next((value for value in reversed(values) if isinstance(value, list)), None)) or None


def _number(record: object, name: str) -> int:
    number = at(record, name)
    if type(number) is not int:
        raise MalformedRecord(f"the record has no {name}, or it is not a whole number")
    return number


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
    return handling(once, "on_rabbitmq", _of_rabbitmq, raise_failed, concurrency=concurrency, **options)


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
    return [fill_in(ACTIVEMQ, message, _jms_message) for message in messages]


def _jms_message(delivery: Delivery) -> None:
    delivery.destination = text_at(delivery.raw, "destination", "physicalName")
    delivery.header = partial(text_at, at(delivery.raw, "properties"))
    delivery.id = delivery.key = text_at(delivery.raw, "messageID")
    delivery.body = from_base64(require_text(delivery.raw, "data"), "data")


def _of_rabbitmq(event: object) -> list[Delivery]:
    source_of(event, RABBITMQ)
    messages = by_name(event, "rmqMessagesByQueue", "events of RabbitMQ, which have a dict of rmqMessagesByQueue")
    return [fill_in(RABBITMQ, message, partial(_rabbitmq_message, queue=name)) for name, message in messages]


def _rabbitmq_message(delivery: Delivery, queue: str) -> None:
    delivery.destination = queue.partition("::")[0]  # the rest is the virtual host
    delivery.header = partial(_rabbitmq_header, at(delivery.raw, "basicProperties", "headers"))
    delivery.id = text_at(delivery.raw, "basicProperties", "messageId")
    delivery.key = delivery.header(KEY_HEADER) or delivery.id
    delivery.body = from_base64(require_text(delivery.raw, "data"), "data")


def _rabbitmq_header(headers: object, name: str) -> str | None:
    value = at(headers, name)
    return str(value) if isinstance(value, str | int | float) else text_of_bytes(at(value, "bytes"))
