"""Checks of arguments, before anything has run. Each error names the argument, and says what to give instead."""

from typing import Any


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
