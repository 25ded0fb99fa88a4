"""Bounds in real time that a busy machine does not break."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TRIES = 6


def within(seconds: float, act: Callable[[int], T], *, least: float = 0.0) -> T:
    """Carry out ``act`` and return its result. It must take less than ``seconds``, in one of several tries.

    A busy machine delays some tries. Wrong code is late in each of them. ``act`` gets the try's number, for keys of its own.
    No try may be shorter than ``least``.
    """
    took = []
    for number in range(TRIES):
        began = time.monotonic()
        result = act(number)
        took.append(time.monotonic() - began)
        assert took[-1] >= least
        if took[-1] < seconds:
            return result
    raise AssertionError(f"it took {took} seconds, and never less than {seconds}")
