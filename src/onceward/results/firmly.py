"""Calling a user's code again when a time limit strikes it: what it raises each time is its own."""

import sys
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_INTERRUPTS: Final = 2  # of one call that do not hide what it raises each time; three mean it


def firmly(function: Callable[[T], R], value: T, *before: Exception) -> R | Exception:
    """Return what ``function(value)`` returns, or what it raises each time; ``before`` is what it has raised already.

    For what calls a user's code, which may raise anything.

    Raises:
        Exception: what it raised once, and not again: a time limit that struck meanwhile. Call this anew then.
    """
    handling = sys.exception()  # which all exceptions from here have as their context
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
    """Return what an exception came of: a time limit that was translated on its way is a cause."""
    while (cause := error.__cause__ or error.__context__) is not None and cause is not handling:
        error = cause
    return error
