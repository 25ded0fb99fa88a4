"""Lambda's answer for a batch: a response that names what failed, or an error."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, cast

import msgspec

from onceward.claim.arguments import check_flag
from onceward.consumers.delivery import BatchFailed, Delivery
from onceward.results.values import model_data

if TYPE_CHECKING:
    from onceward.batch.batch import BatchOutcome

AllFailed = Literal["report", "raise"]
Response = dict[str, list[dict[str, object]]]


def delivery_of(outcome: "BatchOutcome") -> Delivery:
    """Return the delivery that an outcome is about."""
    return cast("Delivery", outcome.record)


def reporting(
    *,
    partial: bool,
    all_failed: AllFailed,
    first_only: bool = False,
    identify: Callable[[Delivery], object] = lambda delivery: delivery.id,
) -> "Callable[[Sequence[BatchOutcome]], Response]":
    """Return what makes a partial batch response of outcomes.

    Args:
        partial: False to raise instead whenever anything failed.
        all_failed: "raise" to raise instead when everything failed; busy and deferred records alone are no failure.
        first_only: whether the source begins again at the first failure, whatever is named besides.
        identify: what stands for a delivery, which has an id, in the response.

    Raises:
        TypeError: ``partial`` is neither True nor False.
        ValueError: ``all_failed`` is neither "report" nor "raise".
    """
    check_flag("partial", partial)
    if all_failed not in {"report", "raise"}:
        raise ValueError(f'all_failed={all_failed!r}: give "report" or "raise"')

    def answer(outcomes: "Sequence[BatchOutcome]") -> Response:
        failed = [outcome for outcome in outcomes if not outcome.ok]
        none_done = len(failed) == len(outcomes) and any(o.status not in {"busy", "deferred"} for o in failed)
        if failed and (not partial or (all_failed == "raise" and none_done)):
            raise failure(outcomes)
        named = failed[:1] if first_only else failed
        # Lambda reads an item without a name as a failure of the whole batch, or ignores it.
        if any(delivery_of(outcome).id is None for outcome in named):
            raise failure(outcomes, "; one of them has no identifier to be reported by")
        return {"batchItemFailures": [{"itemIdentifier": identify(delivery_of(outcome))} for outcome in named]}

    return answer


def raise_failed(outcomes: "Sequence[BatchOutcome]") -> None:
    """Raise BatchFailed when any of the records is not done."""
    if not all(outcome.ok for outcome in outcomes):
        raise failure(outcomes)


def raise_own(outcomes: "Sequence[BatchOutcome]") -> NoReturn:
    """Raise why the only record is not done, or its recorded exception."""
    raise outcomes[0].error or failure(outcomes)


def failure(outcomes: "Sequence[BatchOutcome]", why: str = "") -> BatchFailed:
    """Return the error that makes an invocation fail; the first record's error is its cause."""
    failed = [outcome for outcome in outcomes if not outcome.ok]
    first = failed[0]
    error = BatchFailed(
        f"{len(failed)} of {len(outcomes)} record(s) were not handled{why}; the first is {first.key or first.record}, "
        f"{first.status}: {first.error!r}. What was done is in the ledger, and is not done again when the event comes again",
        outcomes,
    )
    error.__cause__ = first.error
    return error


def json_ready(value: object) -> object:
    """Return ``value`` in JSON's own types; raises TypeError if that is impossible."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=model_data)


def json_bytes(value: object) -> bytes:
    """Return ``value`` as JSON; raises TypeError if that is impossible."""
    return msgspec.json.encode(value, enc_hook=model_data)
