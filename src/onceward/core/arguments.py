"""Checks of arguments, before anything has run. Each error names the argument, and says what to give instead."""

from typing import Any, Final


def check_type(name: str, value: object, kinds: Any, give: str) -> None:
    """Raise TypeError if an argument has another type. Its value is not shown: it may be a secret.

    Args:
        name: the argument's, and whose it is, as in ``Once(store)``.
        value: what was given.
        kinds: the types that it may have, as for ``isinstance``; or a name of an attribute that it must have.
        give: what to give, for the error.
    """
    if not (hasattr(value, kinds) if isinstance(kinds, str) else isinstance(value, kinds)):
        raise TypeError(f"{name}: a value of type {type(value).__name__} was given; give {give}")


def check_hook(option: str, hook: object) -> None:
    """Raise TypeError unless ``hook`` is a plain callable. A coroutine that nobody awaits would count as true."""
    from inspect import iscoroutinefunction

    if not callable(hook):
        raise TypeError(f"{option}={hook!r}: give a callable")
    if iscoroutinefunction(hook) or iscoroutinefunction(type(hook).__call__):
        raise TypeError(f"{option}= is a coroutine function, and nobody would await it: give a plain one")


def check_flag(option: str, value: object) -> None:
    """Raise TypeError when ``value`` is neither True nor False: a text such as "no" would count as true."""
    if type(value) is not bool:
        raise TypeError(f"{option}={value!r}: give True or False")


def check_count(option: str, value: object, least: int = 1) -> None:
    """Raise ValueError unless ``value`` is a whole number, and at least ``least``."""
    if type(value) is not int or value < least:
        raise ValueError(f"{option}={value!r}: give a whole number, at least {least}")


def check_exceptions(option: str, value: object) -> None:
    """Raise TypeError unless ``value`` is a tuple of exception classes."""
    if not isinstance(value, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in value
    ):
        raise TypeError(f"{option}={value!r}: give a tuple of exception classes, as in {option}=(CardDeclined,)")


DURATION: Final = r"[0-9]{1,12}(\.[0-9]{1,6})? ?(ms|s|m|min|h|d)?"
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST: Final = 100 * 366 * 86400.0  # seconds: a longer pause overflows in the system's clocks


def seconds(value: float | str) -> float:
    """Return the seconds of a duration, such as ``90``, ``"90s"``, ``"1.5h"`` or ``"7d"``.

    Raises:
        ValueError: it is none, or longer than 100 years.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r}: give seconds, or a number with a unit, as in 90s, 10m, 1h or 14d")
    if isinstance(value, str):
        import re  # a first call without durations does not pay for it

        match = re.fullmatch(r"([0-9.]+) ?([a-z]*)", value)
        if match is None or not re.fullmatch(DURATION, value):
            raise ValueError(f"{value!r}: give seconds, or a number with ms, s, m, h or d, as in 90s, 10m, 1h or 14d")
        number = float(match[1]) * _UNITS[match[2]]
    else:
        number = float(value)
    if not 0 <= number <= _LONGEST:
        raise ValueError(f"{value!r}: give 0 s to 100 years")
    return number
