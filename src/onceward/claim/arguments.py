"""Arguments that are wrong are refused where they are given, by their own names and with what to do instead."""

from typing import cast

from onceward.claim.factory import GuardFactory
from onceward.core.policy import Options


def check_once(once: object, example: str) -> None:
    """Raise TypeError when ``once`` is no Once: a URL, or the function of a decorator that was given nothing.

    Args:
        once: what was given.
        example: how it is given right, with ``{}`` in the Once's place, as in ``"SqsWorker({}, 'orders', charge)"``.
    """
    if isinstance(getattr(once, "guards", None), GuardFactory):
        return
    if callable(once) and not isinstance(once, type) and example.startswith("@"):
        raise TypeError(f"once={once!r}: (once) is missing: write {example.format('once')}")
    url = once if isinstance(once, str) else "sqlite:///orders.db"
    right = example.format(f"Once({url!r})")
    raise TypeError(f"once={once!r}: give an Once, as in {right}")


def check_hook(option: str, hook: object) -> None:
    """Raise TypeError when ``hook`` cannot be called as a plain function; a coroutine that nobody awaits is true, and no answer."""
    from inspect import iscoroutinefunction

    if not callable(hook):
        raise TypeError(f"{option}={hook!r}: give a callable")
    if iscoroutinefunction(hook) or iscoroutinefunction(type(hook).__call__):
        raise TypeError(f"{option}= is a coroutine function, and nobody would await it: give a plain one")


def check_flag(option: str, value: object) -> None:
    """Raise TypeError when ``value`` is neither True nor False: a text such as "no" is true."""
    if type(value) is not bool:
        raise TypeError(f"{option}={value!r}: give True or False")


def with_wait(options: Options, wait: float | None) -> Options:
    """Return the options of a guard that answers requests, which wait ``wait`` seconds for the one before them, or not at all.

    Raises:
        TypeError, ValueError: ``wait`` is no number of seconds; or ``on_busy`` was given, which is the same by another name.
    """
    if "on_busy" in options:
        raise TypeError("on_busy=...: give wait=SECONDS instead; without it a request under way is answered with 409")
    if wait is None:
        return options
    given = cast("object", wait)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"wait={wait!r}: give the seconds that a request may wait for the answer to the one before it")
    if not wait >= 0:
        raise ValueError(f"wait={wait!r}: give a number of seconds that is not negative, or leave it out")
    return {**options, "on_busy": wait}
