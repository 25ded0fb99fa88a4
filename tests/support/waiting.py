"""Waiting for a condition, and working beside a test."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0


def until(condition: Callable[[], T], seconds: float = PATIENCE, told: Callable[[], object] = str) -> T:
    """Wait for ``condition()`` and return it. If it does not come in time, the test fails with what ``told()`` says."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"it did not happen in time {told()}"
        time.sleep(0.02)
    return found


@contextmanager
def working(worker) -> Iterator:
    """Run a worker in a thread, and stop it at the end. If it has failed, the test does."""
    failed = []

    def run():
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert not failed, failed


TRIES = 12


def within(seconds: float, act: Callable[[int], T], *, least: float = 0.0) -> T:
    """Carry out ``act`` with the number of the try until it takes between ``least`` and ``seconds``: a busy machine delays some tries, wrong code all."""
    took = []
    for number in range(TRIES):
        began = time.monotonic()
        result = act(number)
        took.append(time.monotonic() - began)
        if least <= took[-1] < seconds:
            return result
    raise AssertionError(f"it took {took} seconds, and never between {least} and {seconds}")
