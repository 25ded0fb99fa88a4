"""The observer that is always on: the log ``onceward``.

Events that a person must look at are WARNING. All others are DEBUG; while that level is off, none is made for the log.
"""

import sys
from typing import TYPE_CHECKING, Final

from onceward.errors import OncewardError, Parked

if TYPE_CHECKING:
    from logging import Logger

    from onceward.observe.events import Event, Kind

_DEBUG: Final = 10
_WARNING: Final = 30
_LATE: Final = 1.0  # seconds; a shorter delay is one lost request, which needs nobody
_TEXTS: Final[dict["Kind", str]] = {
    "claimed": "claimed",
    "taken_over": "taken over: the lease of the worker before has ended",
    "replayed": "replayed",
    "busy": "busy: another worker holds it",
    "mismatch": "refused: another input under the same key",
    "parked": "parked. `onceward show` says what to do",
    "step": "a step",
    "renewed": "its lease is renewed",
    "lost": "its lease is lost: another worker may run the handler again",
    "completed": "completed",
    "failed": "failed, and given back",
    "released": "given back",
    "interrupted": "interrupted; it stays claimed to the end of its lease",
    "settled_late": "its end is recorded late: the store did not take it at once",
    "not_recorded": "its end is not recorded. The key stays claimed to the end of its lease, and the handler may run again",
    "malformed": "malformed",
    "deferred": "deferred",
    "sent": "its messages are sent",
    "send_failed": "a message is not sent, and is tried again",
    "refused": "a message is refused for good, and stays in the record",
}
_FOR_PEOPLE: Final = frozenset({"parked", "lost", "not_recorded", "refused"})
_log: "Logger | None" = None


def is_on() -> bool:
    """Return whether the log takes DEBUG. Costs about 0.1 µs and no import: without ``logging``, nobody reads a log."""
    log = _log
    if log is None:
        if "logging" not in sys.modules:
            return False
        log = logger()
    return log.isEnabledFor(_DEBUG)


def logger() -> "Logger":
    """Return the logger. The first call imports ``logging``."""
    global _log
    if _log is None:
        import logging

        _log = logging.getLogger("onceward")
    return _log


def write(event: "Event") -> None:
    """Write an event to the log."""
    kind = event.kind
    level = _WARNING if kind in _FOR_PEOPLE or (event.late or 0.0) >= _LATE else _DEBUG
    if level == _DEBUG and not is_on():
        return
    figures = {
        "step": event.step,
        "attempt": event.attempt,
        "waited": event.waited,
        "ran": event.ran,
        "late": event.late,
    }
    details = ", ".join(f"{name} {_number(value)}" for name, value in figures.items() if value is not None)
    if event.target is not None:
        details = f"{event.target}{details and ', '}{details}"
    error = event.error
    # The text of a handler's own exception may quote the payload, which must not be logged. Parked has that text, too.
    is_ours = isinstance(error, str | OncewardError) and not isinstance(error, Parked)
    why = str(error) if is_ours else type(error).__name__
    text = (
        f"{event.key or event.name}: {_TEXTS[kind]}{details and f' ({details})'}{'' if error is None else f': {why}'}"
    )
    if not text.isprintable():  # keys and reasons come from others, who could forge lines, or speak to a terminal
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    try:
        logger().log(level, "%s", text)
    except Exception:  # a log handler is the user's; a time limit that comes elsewhere goes on
        pass


def _number(value: str | float) -> str:
    return f"{value:.3f} s" if isinstance(value, float) else str(value)
