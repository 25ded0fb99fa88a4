"""The last attempts of a record, for readers: what its ``history`` has, and the attempt that its own fields tell of."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

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
    attempts = [_attempt(line, record) for line in _lines(record.history or "")]
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


class _Line(msgspec.Struct):
    """A line of the history. A line that only notes the begin of an attempt is none: another version has ended it."""

    attempt: int
    fence: int
    outcome: str
    begin: float | None = None
    end: float | None = None
    worker: str | None = None
    error: str | None = None
    trace: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Line)


def _lines(text: str) -> Iterator[_Line]:
    """Yield the lines that can be read. Another version may have left one open."""
    for line in text.split("\n"):
        for whole in (line, line + "}"):
            try:
                yield _DECODER.decode(whole)
            except msgspec.DecodeError:
                continue
            break


def _attempt(line: _Line, record: Record) -> Attempt:
    end = line.end
    if end is None and line.fence == record.fence and line.outcome == record.status:
        end = record.lease_until  # the write that ends a claim leaves no lease
    return Attempt(line.attempt, line.begin, end, line.worker, line.outcome, line.error, line.fence, line.trace)
