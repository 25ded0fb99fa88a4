"""Logs trouble with the ledger: the first error of each kind with its traceback, then how often it came."""

import logging
from typing import Final

from onceward.core.clock import boottime

_AGAIN: Final = 60.0  # seconds after which a kind is logged with its traceback again
_LOG: Final = logging.getLogger("onceward")


class _Kind:
    def __init__(self, now: float) -> None:
        self.since = now
        self.count = 1


_KINDS: dict[tuple[type[BaseException], type[BaseException] | None], _Kind] = {}


def tell(what: str, error: BaseException) -> None:
    """Log an error that concerns ``what``: the first of its kind, then the 10th, the 100th and so on."""
    now = boottime()
    place = type(error), None if error.__cause__ is None else type(error.__cause__)
    kind = _KINDS.get(place)
    if kind is None or now - kind.since > _AGAIN:
        _KINDS[place] = _Kind(now)
        _LOG.error("%s: %s", what, error, exc_info=error)
        return
    kind.count += 1
    if str(kind.count).strip("0") == "1":
        _LOG.error("%s: %s (%d times in %.0f s)", what, error, kind.count, now - kind.since)
