"""Logs trouble with the ledger: the first error of each kind with its traceback, then how often it came."""

import logging
from typing import Final

from onceward.core.clock import boottime

_AGAIN: Final = 60.0  # seconds after which a kind is logged with its traceback again
_LOG: Final = logging.getLogger("onceward")


# For each kind of error: when it was logged with its traceback, and how often it came since.
_KINDS: Final[dict[tuple[type[BaseException], type[BaseException] | None], tuple[float, int]]] = {}


def tell(what: str, error: BaseException) -> None:
    """Log an error that concerns ``what``: the first of its kind, then the 10th, the 100th and so on."""
    now = boottime()
    kind = type(error), None if error.__cause__ is None else type(error.__cause__)
    since, count = _KINDS.get(kind, (0.0, 0))
    if not count or now - since > _AGAIN:
        _KINDS[kind] = now, 1
        _LOG.error("%s: %s", what, error, exc_info=error)
        return
    _KINDS[kind] = since, count + 1
    if str(count + 1).strip("0") == "1":
        _LOG.error("%s: %s (%d times in %.0f s)", what, error, count + 1, now - since)
