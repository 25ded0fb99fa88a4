"""Calls a user's code once more after an exception: one that it raises twice is its own, another is a time limit."""

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def firmly(function: Callable[[T], R], value: T, first: Exception | None = None) -> R | Exception:
    """Return the result of ``function(value)``, or the exception that it raises twice.

    Use it to call a user's code, which may raise anything. ``first`` is what the call has already raised.

    Raises:
        Exception: one that it raised once only: a time limit that came meanwhile. Then call this again.
    """
    if first is None:
        try:
            return function(value)
        except Exception as error:
            first = error
    handling = sys.exception()  # the context of all exceptions raised here
    interrupt = _root(first, handling)
    try:
        function(value)
    except Exception as error:
        if type(_root(error, handling)) is type(interrupt):
            return error
    raise interrupt


def _root(error: BaseException, handling: BaseException | None) -> BaseException:
    """Return the first cause of an exception: a time limit may have been translated on its way."""
    while (cause := error.__cause__ or error.__context__) is not None and cause is not handling:
        error = cause
    return error
