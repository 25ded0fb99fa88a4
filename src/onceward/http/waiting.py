"""How long a request waits for the answer to the one before it."""

from typing import cast

from onceward.core.policy import Options


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
