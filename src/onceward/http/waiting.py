"""How long a request waits for the answer to an earlier one."""

from typing import cast

from onceward.core.policy import Options


def with_wait(options: Options, wait: float | None) -> Options:
    """Return the options of a guard whose requests wait ``wait`` seconds for an earlier one; None does not wait.

    Raises:
        TypeError, ValueError: ``wait`` is not a number of seconds, or ``on_busy``, another name for it, is given.
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
