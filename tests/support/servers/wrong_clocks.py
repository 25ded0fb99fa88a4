"""Processes with a wrong wall clock, by Debian's libfaketime. (The command ``faketime`` leaves shared memory behind when it is killed.)"""

import functools
import select
import time
from pathlib import Path


@functools.cache
def library() -> str | None:
    """Return the path of libfaketime, or None if it is not installed."""
    return next((str(path) for path in Path("/usr/lib").glob("**/faketime/libfaketime.so.1")), None)


def mend_sleep() -> None:
    """Let this process sleep: libfaketime at times turns the absolute time of time.sleep() into one that the kernel refuses."""
    time.sleep = lambda seconds: select.select((), (), (), seconds) and None


def wrong_clock(offset: str) -> dict[str, str]:
    """Return the environment of a process whose time of day is off by ``offset``, such as ``-1h``; its other clocks are right."""
    path = library()
    assert path is not None, "libfaketime is not installed"
    return {"LD_PRELOAD": path, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
