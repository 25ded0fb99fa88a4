"""Lambda's events of SQS queues: partial batch responses, and the order of FIFO queues."""

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, Unpack

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.events.handler import Decorator, ReportOptions, Response, report
from onceward.aws.events.records import at, deliveries_of, fill_in, last_part, notification, require_text, text_at
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.once import Once

SOURCE: Final = "aws:sqs"
Unwrap = Literal["sns"]


def on_sqs(
    once: Once, *, concurrency: int = 1, unwrap: Unwrap | None = None, **options: Unpack[ReportOptions]
) -> Decorator[Response]:
    """Make a function the handler of a standard queue's messages, each handled once: ``@on_sqs(once, key="order.id")``.

    The key is by default the message attribute ``onceward-key``, which ``onceward.aws.send``, the outbox and ``onceward redrive`` set, else the
    message id. The id is the same for all deliveries of one message. A message that was sent twice has two ids, so give a key
    from the payload if it has one.

    Args:
        once: the ledger and the defaults of the policy.
        concurrency: how many messages of one event are handled at a time, in threads or tasks.
        unwrap: ``"sns"`` for a queue that is subscribed to a topic without raw delivery. The payload is then the published
            message. The default key is that message's attribute ``onceward-key``, else SNS's message id, which is the same when
            SNS delivers it twice.
        **options: see :class:`ReportOptions`.

    Returns:
        A decorator. The handler answers ``{"batchItemFailures": [{"itemIdentifier": messageId}]}`` (Lambda Developer Guide,
        "Implementing partial batch responses"). It raises :class:`MalformedEvent` if the event is not of a
        standard queue, and :class:`BatchFailed` if a message that failed has no id to be reported by.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return report(once, "on_sqs", _reader(unwrap, fifo=False), concurrency=concurrency, **options)


def on_sqs_fifo(
    once: Once,
    *,
    concurrency: int = 1,
    unwrap: Unwrap | None = None,
    **options: Unpack[ReportOptions],
) -> Decorator[Response]:
    """Make a function the handler of a FIFO queue's messages, which keeps their order also when one fails.

    After a message that failed, the rest of its message group is skipped. The handler reports all skipped messages as failed, so that they come again in order. ``concurrency`` is how many message groups of one
    event are handled at a time. All else is as for :func:`on_sqs`.
    """
    return report(
        once,
        "on_sqs_fifo",
        _reader(unwrap, fifo=True),
        group=lambda delivery: delivery.group,
        concurrency=concurrency,
        **options,
    )


def _reader(unwrap: Unwrap | None, *, fifo: bool) -> Callable[[object], list[Delivery]]:
    check_unwrap(unwrap)

    def strange(record: object) -> str | None:
        arn = text_at(record, "eventSourceARN")
        if arn is None or arn.endswith(".fifo") is fifo:  # the name of a FIFO queue must end so
            return None
        return (
            f"{arn} is a {'standard' if fifo else 'FIFO'} queue, and this handler is for "
            f"{'FIFO' if fifo else 'standard'} queues. Use {'on_sqs' if fifo else 'on_sqs_fifo'}"
        )

    fill = partial(_fill, unwrap=unwrap, fifo=fifo)
    return lambda event: deliveries_of(event, SOURCE, fill, strange)


def check_unwrap(unwrap: object) -> None:
    """Refuse an ``unwrap=`` that is not valid, with a ValueError."""
    if unwrap not in {None, "sns"}:
        raise ValueError(f'unwrap={unwrap!r}: give "sns", or leave it out')


def message_delivery(record: object, *, unwrap: Unwrap | None, fifo: bool) -> Delivery:
    """Return a message, in Lambda's form, as a delivery. If it cannot be read, its ``fault`` says why.

    ``unwrap`` is as for :func:`on_sqs`; with ``fifo`` the message must have a group.
    """
    return fill_in(SOURCE, record, partial(_fill, unwrap=unwrap, fifo=fifo))


def _fill(delivery: Delivery, *, unwrap: Unwrap | None, fifo: bool) -> None:
    record = delivery.raw
    delivery.id = text_at(record, "messageId")
    delivery.key = text_at(record, "messageAttributes", KEY_ATTRIBUTE, "stringValue") or delivery.id
    # Standard queues have groups, too, but no order.
    delivery.group = text_at(record, "attributes", "MessageGroupId")
    delivery.header = partial(_header, record)
    delivery.destination = last_part(text_at(record, "eventSourceARN"))
    delivery.body = require_text(record, "body")
    if unwrap == "sns":
        envelope = Delivery(SOURCE, record)
        envelope.body = delivery.body
        if at(envelope.data, "Type") != "Notification":
            raise MalformedRecord(
                'the message has no envelope of SNS around it; with raw message delivery leave unwrap="sns" out'
            )
        notification(delivery, envelope.data)
    if fifo and delivery.group is None:
        raise MalformedRecord("the message has no MessageGroupId, which all messages of a FIFO queue have")


def _header(record: object, name: str) -> str | None:
    """Return a message attribute. X-Ray's can be a system attribute (X-Ray Developer Guide, "Amazon SQS and AWS X-Ray")."""
    text = text_at(record, "messageAttributes", name, "stringValue")
    if text is None and name.lower() == "x-amzn-trace-id":
        return text_at(record, "attributes", "AWSTraceHeader")
    return text
