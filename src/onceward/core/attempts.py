"""The last attempts of a record, for readers: what its ``history`` has, and the attempt that its own fields tell of."""

import json
from typing import Any, NamedTuple

from onceward.core import history
from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.core.views import is_lapsed


class Attempt(NamedTuple):
    """One attempt of a key. Times are seconds since the epoch on the store's own clock, and None if nobody knows them.

    Attributes:
        number: 1 for the first one; it starts again after an unpark.
        begin: when its claim was made.
        end: when it was completed, given back or parked.
        worker: who made it.
        outcome: COMPLETED, RELEASED or PARKED; LAPSED if its worker has vanished; IN_PROGRESS if it still runs.
        error: why it failed: at most 500 characters. A sealed text stays sealed.
        fence: its fencing token.
        trace: the W3C traceparent of its span; None without OpenTelemetry.
    """

    number: int
    begin: float | None
    end: float | None
    worker: str | None
    outcome: str
    error: str | None
    fence: int
    trace: str | None = None


def attempts_of(record: Record, now: float) -> list[Attempt]:
    """Return the last attempts of a record, the oldest first, at the store's time ``now``."""
    attempts = [one for line in _lines(record.history) if (one := _attempt(line, record)) is not None]
    if record.status not in {IN_PROGRESS, COMPLETED} or (attempts and attempts[-1].fence == record.fence):
        return attempts
    done = record.status == COMPLETED
    last = Attempt(
        number=record.attempts,
        begin=history.begin(record),
        end=record.lease_until if done else None,
        worker=record.worker,
        outcome=history.LAPSED if is_lapsed(record, now) else record.status,
        error=record.error if done else None,
        fence=record.fence,
        trace=record.trace,
    )
    return [*attempts, last]


def _lines(text: str | None) -> list[dict[str, Any]]:
    """Return the lines that can be read. Another version may have left one open."""
    entries: list[dict[str, Any]] = []
    for line in (text or "").split("\n"):
        for whole in (line, line + "}"):
            try:
                entry = json.loads(whole, strict=False)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append(entry)
            break
    return entries


def _attempt(line: dict[str, Any], record: Record) -> Attempt | None:
    number, fence, outcome = line.get("attempt"), line.get("fence"), line.get("outcome")
    if not isinstance(number, int) or not isinstance(fence, int) or not isinstance(outcome, str):
        return None  # the begin of an attempt that another version ended
    end = _number(line.get("end"))
    if end is None and fence == record.fence and outcome == record.status:
        end = record.lease_until  # the write that ends a claim leaves no lease
    worker, error, trace = line.get("worker"), line.get("error"), line.get("trace")
    return Attempt(
        number=number,
        begin=_number(line.get("begin")),
        end=end,
        worker=worker if isinstance(worker, str) else None,
        outcome=outcome,
        error=error if isinstance(error, str) else None,
        fence=fence,
        trace=trace if isinstance(trace, str) else None,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
