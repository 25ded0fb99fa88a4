"""Checks the options of ``Rules``, and converts them to what the rules call."""

from collections.abc import Callable, Collection

from onceward.claim.arguments import check_hook
from onceward.http.body import fingerprint
from onceward.http.request import Request
from onceward.http.route import Route
from onceward.keys.ledger_keys import fingerprint_of

Fingerprint = Callable[[Request, bytes], object]


def check_seconds(name: str, seconds: object) -> None:
    """Raise TypeError or ValueError if ``seconds`` is not a number of seconds or None, which means no limit."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name}={seconds!r}: give a number of seconds, or None")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name}={seconds!r}: give a number of seconds from 0 on, or None")


def exempt_routes(exempt: Collection[str]) -> tuple[Route, ...]:
    """Return the paths that are not guarded, as routes of the method ``*``."""
    paths: object = exempt
    if isinstance(paths, str) or not isinstance(paths, Collection):
        raise TypeError(f"exempt={exempt!r}: give paths, as in exempt=['/health', '/webhooks/*']")
    return tuple(Route(path, methods=["*"]) for path in exempt)


def fingerprinter(chosen: object) -> Callable[[Request, bytes], str]:
    """Return the function that makes the fingerprint of a request."""
    if chosen == "all":
        return fingerprint
    if chosen == "path":
        return lambda request, _: _placed(request, "path")
    if not callable(chosen):
        raise TypeError(
            f'fingerprint={chosen!r}: give "all", "path", or a callable that is given a request and its body'
        )
    check_hook("fingerprint", chosen)
    return lambda request, body: _placed(request, chosen(request, body))


def _placed(request: Request, value: object) -> str:
    """Return the fingerprint of a request's method, path and the chosen value."""
    return fingerprint_of((request.method, request.place, value))


def check_length(length: object) -> None:
    """Raise TypeError or ValueError if ``length`` is not a pair of lengths."""
    if not (isinstance(length, tuple | list) and len(length) == 2 and all(type(end) is int for end in length)):
        raise TypeError(f"length={length!r}: give at least and at most so many characters, as in (16, 255)")
    if not 1 <= length[0] <= length[1]:
        raise ValueError(f"length={length!r}: give at least and at most so many characters, as in (16, 255)")


def statuses(record: Callable[[int], bool] | Collection[int]) -> Callable[[int], bool]:
    """Return the function that tells whether an answer of a status is recorded."""
    if callable(record):
        check_hook("record", record)
        return record
    statuses: object = record
    if (
        not isinstance(statuses, Collection)
        or not statuses
        or any(not isinstance(s, int) or s is True for s in statuses)
    ):
        raise TypeError(f"record={record!r}: give statuses, as in record=[200, 201], or a callable that is given one")
    return frozenset(record).__contains__
