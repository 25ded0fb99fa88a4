"""Lambda functions whose results are their answers: direct invocations, and Firehose's transformation of records."""

import inspect
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import wraps
from typing import Any, Final, Unpack, cast

import msgspec

from onceward.aws.events.handler import (
    BatchFailed,
    Decorator,
    LambdaHandler,
    Response,
    delivery_of,
    handling,
    raise_own,
)
from onceward.aws.events.records import at, fill_in, from_base64, require_text, text_at, unfit
from onceward.batch.outcomes import BatchOutcome
from onceward.claim import durable
from onceward.consumers.delivery import Delivery, DeliveryOptions
from onceward.observe.logs import logger
from onceward.once import Once
from onceward.results.values import model_data

SOURCE: Final = "aws:lambda"
_CONTEXT: ContextVar[object] = ContextVar("onceward_context", default=None)


def on_invoke(once: Once, **options: Unpack[DeliveryOptions]) -> Decorator[object]:
    """Make a function the handler of direct invocations, each handled once.

    The payload is the event. The key is the request id by default. Lambda keeps it when it retries an asynchronous invocation.
    A caller that retries gets another id, so give a key from the payload. A parameter ``context`` gets Lambda's context.

    Under ``@durable_execution`` the key stays claimed while the execution is suspended, and its next run goes on. The lease is 366 days
    there, or ``lease=`` if you give it: give the function's ExecutionTimeout. Another execution with the key is refused with Busy.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`DeliveryOptions`.

    Returns:
        A decorator. The handler answers with what the function returned, now or earlier, in JSON's own types (a dataclass as a
        dict, a datetime as text). It raises the function's exception, or the error that kept it from running.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    decorate = handling(once, "on_invoke", _delivery, _answer, values=True, **options)

    def wrap(function: Callable[..., object]) -> LambdaHandler[object]:
        signature = inspect.signature(function)
        inner = decorate(_given_context(function, signature) if "context" in signature.parameters else function)

        @wraps(function)
        def handle(event: object, context: object = None) -> object:
            token = _CONTEXT.set(context)
            try:
                return inner(event, context)
            finally:
                _CONTEXT.reset(token)

        return cast("LambdaHandler[object]", handle)

    return wrap


def _given_context(function: Callable[..., object], signature: inspect.Signature) -> Callable[..., object]:
    """Return a function of the payload, which gives Lambda's context to ``function``."""

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        return function(*args, context=_CONTEXT.get(), **kwargs)

    @wraps(function)
    async def call_async(*args: object, **kwargs: object) -> object:
        return await cast("Awaitable[object]", function(*args, context=_CONTEXT.get(), **kwargs))

    wrapper: Any = call_async if inspect.iscoroutinefunction(function) else call
    rest = [one for name, one in signature.parameters.items() if name != "context"]
    wrapper.__signature__ = signature.replace(parameters=rest)
    return cast("Callable[..., object]", wrapper)


def _delivery(event: object) -> list[Delivery]:
    delivery = Delivery(SOURCE, event)
    context = _CONTEXT.get()
    lasting = durable.context_of((context,), {})
    request = getattr(context, "aws_request_id", None) if lasting is None else durable.execution_of(lasting)
    if isinstance(request, str) and request:
        delivery.id = delivery.key = request
    delivery.data = event
    return [delivery]


def _answer(outcomes: Sequence[BatchOutcome]) -> object:
    if not outcomes[0].ok or outcomes[0].error is not None:
        raise_own(outcomes)
    return msgspec.to_builtins(outcomes[0].value, str_keys=True, enc_hook=model_data)


FIREHOSE: Final = "aws:firehose"


class Dropped(Enum):
    """The type of :data:`DROPPED`."""

    DROPPED = "Dropped"


DROPPED: Final = Dropped.DROPPED
"""What a function returns for a record that must not be delivered."""


def on_firehose(once: Once, *, concurrency: int = 1, **options: Unpack[DeliveryOptions]) -> Decorator[Response]:
    """Make a function the transformation of a Firehose stream, each record transformed once.

    The function returns bytes, a str, or a value that is written as JSON, or :data:`DROPPED`. What it returned is recorded, and
    a record that comes again gets the same. The key is the stream and the ``recordId`` by default.

    Args:
        once: the ledger and the defaults of the policy; ``max_result`` bounds what can be recorded of one record.
        concurrency: how many records of one event are handled at a time, in threads or tasks.
        **options: see :class:`DeliveryOptions`.

    Returns:
        A decorator. The handler answers with ``recordId``, ``result`` and ``data`` of each record (Firehose Developer Guide,
        "Required parameters for data transformation"). ``Ok`` comes with the new data, ``Dropped`` and ``ProcessingFailed``
        with the unchanged data. It raises :class:`MalformedEvent` if the event is not of Firehose, and
        :class:`BatchFailed` if a record has no ``recordId`` to answer with.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return handling(once, "on_firehose", _of_firehose, _transform, concurrency=concurrency, values=True, **options)


def _of_firehose(event: object) -> list[Delivery]:
    stream, records = text_at(event, "deliveryStreamArn"), at(event, "records")
    if stream is None or not isinstance(records, list):
        raise unfit(event, "events of Firehose, which have a deliveryStreamArn and a list of records")

    def fill(delivery: Delivery) -> None:
        delivery.id = text_at(delivery.raw, "recordId")
        if delivery.id is not None:
            delivery.key = (stream, delivery.id)
        field = _field(delivery.raw)
        delivery.body = from_base64(require_text(delivery.raw, field), field)

    return [fill_in(FIREHOSE, record, fill) for record in records]


def _field(record: object) -> str:
    """Return the name of the data's field, which is the same in the answer. It depends on the stream's source."""
    return "kafkaRecordValue" if at(record, "kafkaRecordValue") is not None else "data"


def _transform(outcomes: Sequence[BatchOutcome]) -> Response:
    if any(delivery_of(outcome).id is None for outcome in outcomes):
        raise BatchFailed("the event has a record without a recordId to answer with; Firehose must try again", outcomes)
    return {"records": [_result_of(outcome) for outcome in outcomes]}


def _result_of(outcome: BatchOutcome) -> dict[str, object]:
    delivery = delivery_of(outcome)
    field = _field(delivery.raw)
    answer: dict[str, object] = {"recordId": delivery.id, "result": "ProcessingFailed", field: at(delivery.raw, field)}
    if not outcome.ok or outcome.error is not None:
        return answer
    if outcome.value is DROPPED:
        return answer | {"result": DROPPED.value}
    try:
        return answer | {"result": "Ok", field: _encode(outcome.value)}
    except Exception:
        logger().exception("%s: the value that the function returned cannot be delivered", outcome.key)
        return answer


def _encode(value: object) -> str:
    if value is None:
        raise TypeError("the function returned None: return the new data, or onceward.aws.DROPPED")
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes | bytearray):
        value = msgspec.json.encode(value, enc_hook=model_data)
    return b2a_base64(value, newline=False).decode()
