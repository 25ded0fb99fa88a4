"""Reports a batch's outcomes as they happen: to the log, and to the adapter that made the batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from onceward.batch.outcomes import BatchOutcome
from onceward.claim.held import HeldClaim
from onceward.observe.logs import logger
from onceward.results.outcomes import describe

if TYPE_CHECKING:
    from logging import Logger


def tell(outcome: BatchOutcome, heard: Callable[[BatchOutcome], None] | None) -> None:
    """Log an outcome that is not ok, and call ``heard``. An error in ``heard`` is logged and changes nothing."""
    if outcome.ok and heard is None:
        return
    log = logger()
    if not outcome.ok:
        _log(log, outcome)
    if heard is not None:
        try:
            heard(outcome)
        except Exception:
            log.exception("%s: what hears of outcomes raised, which changes nothing", outcome.key)


def _log(log: "Logger", outcome: BatchOutcome) -> None:
    where = outcome.key or _without_key(outcome.record)
    if outcome.status == "malformed":
        log.error("%s: malformed: %s", where, _without_payload(outcome.error))
    elif outcome.status == "failed":
        log.error("%s: %s", where, outcome.status, exc_info=outcome.error)
    elif outcome.status in {"parked", "mismatch"}:
        log.warning("%s: %s", where, describe(outcome.error) if outcome.error else outcome.status)
    else:
        log.info("%s: %s", where, outcome.status)


def _without_key(record: object) -> str:
    """Describe a record without a key, by its id if it has one, as a delivery does."""
    try:
        own = getattr(record, "id", None)
    except Exception:  # a user's property may raise anything
        own = None
    source = getattr(record, "source", None) if isinstance(own, str | int) and own != "" else None
    named = f" of {source}" if isinstance(source, str) and source else ""
    return f"the record {own}{named}" if isinstance(own, str | int) and own != "" else "a record without a key"


def _without_payload(error: BaseException | None) -> str:
    """Return why a record is malformed, without the cause's text, which may quote a payload that must not be logged."""
    if error is None or error.__cause__ is None:
        return "" if error is None else describe(error)  # our own words
    return (
        f"{type(error).__name__} from {type(error.__cause__).__name__}, whose text may quote the payload and is not logged. "
        "Look at the message where it came from; an observer of Once(observe=[...]) is given the error itself"
    )


def warn(claim: HeldClaim) -> None:
    """Warn about a result that was not stored. If warnings are errors, log it instead: the record is completed anyway."""
    try:
        claim.warn()
    except Warning as warning:
        logger().warning("%s", warning)
