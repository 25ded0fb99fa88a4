"""Direct invocations of a Lambda function, and all others with their own kind of input."""

from collections.abc import Callable, Sequence
from typing import Final, Unpack

import msgspec

from onceward.aws.events.handler import LambdaHandler, Source, wrapping
from onceward.aws.events.response import raise_own
from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.delivery import Delivery, DeliveryOptions
from onceward.once import Once
from onceward.results.values import model_data

SOURCE: Final = "aws:lambda"


def on_invoke(
    once: Once, **options: Unpack[DeliveryOptions]
) -> Callable[[Callable[..., object]], LambdaHandler[object]]:
    """Make a function the handler of direct invocations, each handled once.

    The payload is the event. The key is the request id by default. Lambda keeps it when it retries an asynchronous invocation.
    A caller that retries gets another id, so give a key from the payload.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`DeliveryOptions`.

    Returns:
        A decorator. The handler answers with what the function returned, now or earlier, in JSON's own types (a dataclass as a
        dict, a datetime as text). It raises what the function raised, or why it did not run.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return wrapping(once, Source("on_invoke", _delivery, _answer, values=True), options)


def _delivery(event: object, context: object) -> list[Delivery]:
    delivery = Delivery(SOURCE, event)
    request = getattr(context, "aws_request_id", None)
    if isinstance(request, str) and request:
        delivery.id = delivery.key = request
    delivery.data = event
    return [delivery]


def _answer(outcomes: Sequence[BatchOutcome]) -> object:
    if not outcomes[0].ok or outcomes[0].error is not None:
        raise_own(outcomes)
    return msgspec.to_builtins(outcomes[0].value, str_keys=True, enc_hook=model_data)
