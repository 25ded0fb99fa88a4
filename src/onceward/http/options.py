"""Checks the options of ``Rules`` and of faces, and converts them to what is called later."""

from collections.abc import Callable, Collection

from onceward.core.arguments import check_hook
from onceward.core.policy import Options
from onceward.http.body import fingerprint
from onceward.http.request import Request
from onceward.keys.ledger_keys import fingerprint_of

Fingerprint = Callable[[Request, bytes], object]


def with_wait(options: Options, wait: float | None) -> Options:
    """Return the options of a guard whose requests wait ``wait`` seconds for an earlier one; None does not wait.

    Raises:
        TypeError, ValueError: ``wait`` is not a number of seconds, or ``on_busy``, another name for it, is given.
    """
    if "on_busy" in options:
        raise TypeError(
            "on_busy=...: give wait=SECONDS instead. Without it, a request gets 409 while an earlier one runs"
        )
    check_seconds("wait", wait, endless=True)
    return options if wait is None else {**options, "on_busy": wait}


def check_seconds(name: str, seconds: object, *, endless: bool = False) -> None:
    """Raise ValueError if ``seconds`` is neither a number of seconds nor None."""
    if seconds is None:
        return
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not seconds >= 0
        or (seconds == float("inf") and not endless)
    ):
        raise ValueError(f"{name}={seconds!r}: give a number of seconds from 0 on, or None")


def fingerprinter(option: object) -> Callable[[Request, bytes], str]:
    """Return the function that makes the fingerprint of a request."""
    if option == "all":
        return fingerprint
    if option == "path":
        return lambda request, _: _place(request, "path")
    if not callable(option):
        raise TypeError(
            f'fingerprint={option!r}: give "all", "path", or a callable that is given a request and its body'
        )
    check_hook("fingerprint", option)
    return lambda request, body: _place(request, option(request, body))


def _place(request: Request, value: object) -> str:
    """Return the fingerprint of a request's method, path and the chosen value."""
    return fingerprint_of((request.method, request.place, value))


def statuses(record: Callable[[int], bool] | Collection[int]) -> Callable[[int], bool]:
    """Return the function that tells whether an answer of a status is recorded."""
    if callable(record):
        check_hook("record", record)
        return record
    known = frozenset(record)
    if not known or not all(type(status) is int for status in known):
        raise TypeError(f"record={record!r}: give statuses, as in record=[200, 201], or a callable that is given one")
    return known.__contains__
