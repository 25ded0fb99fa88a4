"""Colours of states, on a terminal only. NO_COLOR turns them off (https://no-color.org)."""

import os
import sys
from typing import Final

from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED

_RED, _GREEN, _YELLOW, _CYAN = "31", "32", "33", "36"
_OF: Final = {
    PARKED: _RED,
    "REFUSED": _RED,
    "DAMAGED": _RED,
    "LAPSED": _YELLOW,
    "UNSENT": _YELLOW,
    RELEASED: _YELLOW,
    COMPLETED: _GREEN,
    IN_PROGRESS: _CYAN,
}


def coloured(text: str, state: str) -> str:
    """Return a text in the colour of a state, if the standard output is a terminal that wants it."""
    code = _OF.get(state.upper())
    plain = code is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
