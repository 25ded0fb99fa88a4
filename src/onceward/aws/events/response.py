"""Lambda's answer for a batch: a response that names what failed, or an error."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, NoReturn, Unpack, cast

from onceward.aws.events.handler import Decorator, handling
from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.delivery import Delivery, DeliveryOptions
from onceward.core.arguments import check_flag
from onceward.errors import OncewardError
from onceward.once import Once

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

    def __init__(self, message: str, outcomes: Sequence[BatchOutcome] = ()) -> None:
        super().__init__(message)
        self.outcomes = outcomes


def delivery_of(outcome: BatchOutcome) -> Delivery:
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

    def answer(outcomes: Sequence[BatchOutcome]) -> Response:
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


def raise_failed(outcomes: Sequence[BatchOutcome]) -> None:
    """Raise BatchFailed if any record is not done."""
    if not all(outcome.ok for outcome in outcomes):
        raise failure(outcomes)


def raise_own(outcomes: Sequence[BatchOutcome]) -> NoReturn:
    """Raise why the only record is not done, or its recorded exception."""
    error = outcomes[0].error
    raise failure(outcomes) if error is None else error


def failure(outcomes: Sequence[BatchOutcome], why: str = "") -> BatchFailed:
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
