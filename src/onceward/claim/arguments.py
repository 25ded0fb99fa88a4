"""Checks of arguments: each error names the argument and says what to give instead."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.observe.events import Observer


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


def checked_observers(observe: "Iterable[Observer]") -> "list[Observer]":
    """Return the observers; raises TypeError unless all are plain callables."""
    if callable(observe):
        raise TypeError(f"observe={observe!r}: give a list, as in observe=[print]")
    observers = list(observe)
    for one in observers:
        check_hook("observe", one)
    return observers
