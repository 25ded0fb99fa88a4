"""What all handlers of event sources share: read the event, handle its records, answer in the source's own terms."""

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar, Unpack, cast

from onceward.claim import durable
from onceward.consumers.delivery import Delivery, DeliveryOptions, MalformedRecord
from onceward.core import worker
from onceward.core.arguments import check_flag
from onceward.core.policy import Options
from onceward.errors import KeyMissing, OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.once import Once, check_once

if TYPE_CHECKING:
    from onceward.batch.batch import Batch
    from onceward.batch.outcomes import BatchOutcome, Reading
    from onceward.keys.reading import KeySource
    from onceward.observe.observers import Observers

_SENDING: Final = 10.0  # seconds for which an answer waits for its messages, at most
_SPARE: Final = 0.5  # seconds of an invocation that are left for its answer
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LambdaHandler(Protocol[T_co]):
    """What a decorator returns: Lambda calls it. The function itself is its ``__wrapped__``."""

    __wrapped__: Callable[..., object]

    def __call__(self, event: object, context: object = None) -> T_co:
        """Handle one event.

        Args:
            event: as Lambda gives it.
            context: as Lambda gives it. Its ``get_remaining_time_in_millis()``, if there is one, limits what begins.

        Raises:
            MalformedEvent: it is not of this source; nothing has run.
            BatchFailed: it must be delivered again; see the decorator of the source.
        """
        ...


Decorator = Callable[[Callable[..., object]], LambdaHandler[T]]


def handling(
    once: Once,
    source: str,
    deliveries: Callable[[object], list[Delivery]],
    answer: "Callable[[Sequence[BatchOutcome]], T]",
    /,
    *,
    group: Callable[[Delivery], Hashable | None] | None = None,
    concurrency: int = 1,
    values: bool = False,
    key: "KeySource | None" = None,
    fingerprint: "KeySource | bool | None" = None,
    name: str | None = None,
    **options: Unpack[Options],
) -> Decorator[T]:
    """Return the decorator for an event source.

    Args:
        once: the ledger and the defaults of the policy.
        source: the decorator's name, for errors.
        deliveries: returns one delivery for each record of an event; raises MalformedEvent.
        answer: makes the response from their outcomes, or raises.
        group: as for :meth:`Once.batch`.
        concurrency: as for :meth:`Once.batch`.
        values: whether ``answer`` needs the handlers' results.
        key: as for :class:`DeliveryOptions`.
        fingerprint: as for :class:`DeliveryOptions`.
        name: as for :class:`DeliveryOptions`.
        **options: see :class:`onceward.Policy`.

    Raises:
        TypeError, ValueError: an option or the function does not fit.
    """
    check_once(once, f"@{source}({{}})")

    def decorate(function: Callable[..., object]) -> LambdaHandler[T]:
        from onceward.batch.batch import Batch
        from onceward.consumers.reader import DeliveryReader

        read = partial(_read_naming, DeliveryReader(function, key, fingerprint).read)
        space = namespace(once, function, name)
        batch = Batch(
            once.guards, function, read, name=space, concurrency=concurrency, group=group, values=values, **options
        )

        def handle(event: object, context: object) -> T:
            records = deliveries(event)
            if (lasting := durable.context_of((context,), {})) is not None:
                return answer([_durably(batch, source, function, lasting, records)])
            for number, delivery in enumerate(records, 1):
                if delivery.id is None and delivery.key is None and delivery.place is None:
                    delivery.place = f"number {number} of the event"
            remaining = time_left(context)
            if batch.is_async:
                from onceward.aws.events.loop import run

                return answer(run(batch.run_async(records, time_left=remaining)))
            return answer(batch.run(records, time_left=remaining))

        return naming_worker(function, handle, once.guards.observers)

    return decorate


def namespace(once: Once, function: Callable[..., object], name: str | None) -> str | None:
    """Return ``name``; without one in a Once without a name, the Lambda function's name and the function's own.

    Lambda's consoles and templates call every handler ``app.handler``, so two functions with one ledger would share keys.

    Raises:
        ValueError: another function has that name.
    """
    deployed = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")
    if not deployed or once.guards.name is not None:
        return name
    return once.guards.using(deployed, {}).apart(name, function)


def _durably(
    batch: "Batch", source: str, function: Callable[..., object], context: object, deliveries: list[Delivery]
) -> "BatchOutcome":
    """Handle the event of a durable function, whose suspensions are its own."""
    from onceward.batch.outcomes import BatchOutcome

    if source != "on_invoke":
        raise TypeError(f"@{source} does not fit a durable function: use @on_invoke or @once(key=...)")
    (delivery,) = deliveries
    reading = batch.read(delivery)
    key = ledger_key(batch.name, reading.key)
    value = durable.call(batch.guard, key, reading.fingerprint, function, reading.args, {}, context=context)
    return BatchOutcome("done", delivery, key, value)


def _read_naming(read: "Callable[[Delivery], Reading]", delivery: Delivery) -> "Reading":
    """Read a delivery. An error about it names it: the source only tells of a batch or of a place in it."""
    try:
        return read(delivery)
    except (MalformedRecord, KeyMissing) as error:
        if error is not delivery.fault:
            error.args = (f"{delivery.named}: {error}", *error.args[1:])
        raise


def naming_worker(
    function: Callable[..., object], handle: Callable[[Any, object], T], observers: "Observers"
) -> LambdaHandler[T]:
    """Return ``handle`` as the handler made of ``function``; claims carry the Lambda function's name and its request."""

    @wraps(function)
    def wrapper(event: object, context: object = None) -> T:
        request = getattr(context, "aws_request_id", None)
        name = f"{getattr(context, 'function_name', None) or worker.process}/{request}" if request else None
        token = worker.NAMED.set(name)
        try:
            return handle(event, context)
        finally:
            worker.NAMED.reset(token)
            _send_messages(context)
            observers.flush()  # the process may be frozen now

    return cast("LambdaHandler[T]", wrapper)


def _send_messages(context: object) -> None:
    """Send the messages that this invocation has still to send: the process may be frozen now."""
    sender = sys.modules.get("onceward.outbox.sender")
    if sender is None or not len(sender.SENDER):
        return
    remaining = time_left(context)
    seconds = _SENDING if remaining is None else min(remaining - _SPARE, _SENDING)
    loop = sys.modules.get("onceward.aws.events.loop")
    if loop is None:
        sender.drain(seconds)
        return
    try:
        loop.run(sender.drain_async(seconds))  # a ledger that is awaited needs its loop
    except RuntimeError:  # another loop runs in this thread
        sender.drain(seconds)


def time_left(context: object) -> float | None:
    """Return the seconds until Lambda stops the invocation; None if the context does not say."""
    tell = getattr(context, "get_remaining_time_in_millis", None)
    milliseconds = tell() if callable(tell) else None
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None


# --- answers: a response that names what failed, or an error ----------------------------------------------------------

Response = dict[str, list[dict[str, object]]]


class BatchFailed(OncewardError):
    """Records of an event failed, so the invocation fails and the event is delivered again.

    Finished records are in the ledger and do not run again.

    Cause: The source or the event source mapping takes no report of single records, so if one record fails, all records
    come again.

    Fix: See ``outcomes`` for each record's error. The event comes again by itself, until its source stops trying.

    Attributes:
        outcomes: one outcome for each record, in the order of the event.
    """

    def __init__(self, message: str, outcomes: "Sequence[BatchOutcome]" = ()) -> None:
        super().__init__(message)
        self.outcomes = outcomes


def delivery_of(outcome: "BatchOutcome") -> Delivery:
    """Return the delivery that an outcome is about."""
    return cast("Delivery", outcome.record)


class ReportOptions(DeliveryOptions, total=False):
    """The keywords of handlers that report each record that failed, besides those of :class:`DeliveryOptions`.

    Attributes:
        partial: whether the event source mapping has ``ReportBatchItemFailures``; True by default. If not, give False: any
            failure then fails the invocation. Lambda would ignore a response, and delete or skip the failed records.
    """

    partial: bool


def report(
    once: Once,
    source: str,
    deliveries: Callable[[object], list[Delivery]],
    *,
    group: Callable[[Delivery], Hashable | None] | None = None,
    concurrency: int = 1,
    first_only: bool = False,
    identify: Callable[[Delivery], object] = lambda delivery: delivery.id,
    partial: bool = True,
    **options: Unpack[DeliveryOptions],
) -> Decorator[Response]:
    """Return the decorator for a source that wants a partial batch response.

    ``identify`` returns what the response names a failed delivery by. With ``first_only`` the response names only the
    first failure, because the source begins again there. The other arguments are those of :func:`handling` and
    :class:`ReportOptions`.

    Raises:
        TypeError: ``once`` is not a Once, or ``partial`` is neither True nor False.
    """
    check_flag("partial", partial)

    def answer(outcomes: "Sequence[BatchOutcome]") -> Response:
        failed = [outcome for outcome in outcomes if not outcome.ok]
        if failed and not partial:
            raise failure(outcomes)
        failures = failed[:1] if first_only else failed
        # Lambda reads an item without a name as a failure of the whole batch, or ignores it.
        if any(delivery_of(outcome).id is None for outcome in failures):
            raise failure(outcomes, "; one of them has no identifier, so it cannot be reported")
        return {"batchItemFailures": [{"itemIdentifier": identify(delivery_of(outcome))} for outcome in failures]}

    return handling(once, source, deliveries, answer, group=group, concurrency=concurrency, **options)


_NOT_BEGUN: Final = (
    "it was not begun, as when the invocation has no time left for it. A lease needs as much time as the handler takes: raise the "
    "function's timeout"
)


def raise_failed(outcomes: "Sequence[BatchOutcome]") -> None:
    """Raise BatchFailed if any record is not done."""
    if not all(outcome.ok for outcome in outcomes):
        raise failure(outcomes)


def raise_own(outcomes: "Sequence[BatchOutcome]") -> NoReturn:
    """Raise why the only record is not done, or its recorded exception."""
    error = outcomes[0].error
    raise failure(outcomes) if error is None else error


def failure(outcomes: "Sequence[BatchOutcome]", why: str = "") -> BatchFailed:
    """Return the error that makes an invocation fail; the first record's error is its cause."""
    failed = [outcome for outcome in outcomes if not outcome.ok]
    first = failed[0]
    error = BatchFailed(
        f"{len(failed)} of {len(outcomes)} record(s) were not handled{why}; the first is {first.key or delivery_of(first).named}, "
        f"{first.status}: {_NOT_BEGUN if first.error is None else repr(first.error)}. Finished records are in the ledger, and do not run "
        "again when the event comes again",
        outcomes,
    )
    error.__cause__ = first.error
    return error
