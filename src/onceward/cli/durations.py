"""Reads the durations of options: seconds, or a number with a unit."""

import re
from typing import Final

from onceward.cli.ledgers import USAGE, refuse

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([a-z]*)").fullmatch


def seconds(option: str, text: str | None) -> float | None:
    """Return the seconds of a duration such as ``90``, ``90s``, ``10m``, ``1.5h`` or ``7d``. End the command if it is none."""
    if text is None:
        return None
    match = _DURATION(text)
    if match is None or match[2] not in _UNITS:
        refuse(f"{option} {text}: give seconds, or a number with s, m, h or d, as in 90s, 10m, 1h or 7d", USAGE)
    return float(match[1]) * _UNITS[match[2]]
