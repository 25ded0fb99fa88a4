"""Retries of exchanges that failed, while their errors are transient."""

import os
from collections.abc import Callable
from typing import TypeVar

from onceward.core.clock import Clock
from onceward.core.drivers import Sleep, Steps

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between tries, doubled each time, jittered by half
CLAIM_PATIENCE = 2.0  # seconds of failing exchanges before a claim gives up, which is safe: the handler has not run


def retry_transient(
    verb: Callable[[], Steps[T]], clock: Clock, until: Callable[[], float], error: Exception | None = None
) -> Steps[T]:
    """Drive ``verb()``, again after each transient error while the clock is below ``until()``. ``error`` is an earlier try's."""
    pause = FIRST_PAUSE
    while True:
        if error is not None:
            left = until() - clock()
            if not getattr(error, "transient", False) or left <= 0:
                raise error
            yield jittered(min(pause, left + FIRST_PAUSE))
            pause = min(pause * 2, LONGEST_PAUSE)
        try:
            return (yield from verb())
        except Exception as met:
            error = met


def jittered(seconds: float) -> Sleep:
    """Return a pause of at most ``seconds``, so that many workers do not retry at once."""
    return Sleep(seconds * (0.5 + os.urandom(1)[0] / 510))


def patience(clock: Clock, seconds: float = CLAIM_PATIENCE) -> Callable[[], float]:
    """Return the limit for retries: ``seconds`` from now, but at least one retry after a slow first try."""
    began, limit = clock(), 0.0

    def until() -> float:
        nonlocal limit
        limit = limit or max(began + seconds, clock() + 2 * FIRST_PAUSE)
        return limit

    return until
