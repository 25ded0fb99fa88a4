"""Calls a user's code again after an exception: one that it raises each time is its own, others are time limits."""

import sys
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_INTERRUPTS: Final = 2  # exceptions of one type that can be interrupts; a third counts as the code's own


def firmly(function: Callable[[T], R], value: T, *before: Exception) -> R | Exception:
    """Return the result of ``function(value)``, or the exception that it raises each time.

    Use it to call a user's code, which may raise anything. ``before`` is what the call has already raised.

    Raises:
        Exception: one that it did not raise each time: a time limit that came meanwhile. Then call this again.
    """
    handling = sys.exception()  # the context of all exceptions raised here
    met = [_root(error, handling) for error in before]
    lasting: type | None = None
    while True:
        try:
            came: R | Exception = function(value)
            break
        except Exception as error:
            met.append(_root(error, handling))
            alike = sum(type(one) is type(met[-1]) for one in met)
            if alike > _INTERRUPTS or len(met) > 2 * _INTERRUPTS:
                came, lasting = error, type(met[-1])
                break
    for interrupt in met:
        if type(interrupt) is not lasting:
            raise interrupt
    return came


def _root(error: BaseException, handling: BaseException | None) -> BaseException:
    """Return the first cause of an exception: a time limit may have been translated on its way."""
    while (cause := error.__cause__ or error.__context__) is not None and cause is not handling:
        error = cause
    return error
