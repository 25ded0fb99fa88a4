"""Bounds in real time that a busy machine does not break."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TRIES = 12


def within(seconds: float, act: Callable[[int], T], *, least: float = 0.0) -> T:
    """Carry out ``act`` and return its result. It must take between ``least`` and ``seconds``, in one of several tries.

    A busy machine delays some tries, and lets leases lapse in others. Wrong code is late, or early, in each of them. ``act``
    gets the try's number, for keys of its own.
    """
    took = []
    for number in range(TRIES):
        began = time.monotonic()
        result = act(number)
        took.append(time.monotonic() - began)
        if least <= took[-1] < seconds:
            return result
    raise AssertionError(f"it took {took} seconds, and never between {least} and {seconds}")
