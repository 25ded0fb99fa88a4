"""Direct invocations of a Lambda function, and all others with their own kind of input."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, Unpack, cast

import msgspec

from onceward.aws.events.handler import Decorator, LambdaHandler, handling
from onceward.aws.events.response import raise_own
from onceward.batch.outcomes import BatchOutcome
from onceward.claim import durable
from onceward.consumers.delivery import Delivery, DeliveryOptions
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

    def decorated(function: Callable[..., object]) -> LambdaHandler[object]:
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

    return decorated


def _given_context(function: Callable[..., object], signature: inspect.Signature) -> Callable[..., object]:
    """Return a function of the payload, which gives Lambda's context to ``function``."""

    @wraps(function)
    def given(*args: object, **kwargs: object) -> object:
        return function(*args, context=_CONTEXT.get(), **kwargs)

    @wraps(function)
    async def given_async(*args: object, **kwargs: object) -> object:
        return await cast("Awaitable[object]", function(*args, context=_CONTEXT.get(), **kwargs))

    made: Any = given_async if inspect.iscoroutinefunction(function) else given
    rest = [one for name, one in signature.parameters.items() if name != "context"]
    made.__signature__ = signature.replace(parameters=rest)
    return cast("Callable[..., object]", made)


def _delivery(event: object) -> list[Delivery]:
    delivery = Delivery(SOURCE, event)
    context = _CONTEXT.get()
    request = durable.execution_of((context,), {}) or getattr(context, "aws_request_id", None)
    if isinstance(request, str) and request:
        delivery.id = delivery.key = request
    delivery.data = event
    return [delivery]


def _answer(outcomes: Sequence[BatchOutcome]) -> object:
    if not outcomes[0].ok or outcomes[0].error is not None:
        raise_own(outcomes)
    return msgspec.to_builtins(outcomes[0].value, str_keys=True, enc_hook=model_data)
