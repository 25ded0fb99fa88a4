"""Stops a process by signals: the first begins nothing new, the second kills what runs, the third has the system's effect."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether, and how urgently, this process was told to stop.

    Attributes:
        asked: finish what runs, begin nothing new.
        signalled: a signal asked for it.
        forced: do not wait for what runs.
        wake: a file descriptor for ``select``, readable after a signal.
        on_force: called by a signal handler when ``forced`` is set. It must take no lock that the main thread may hold.
    """

    def __init__(self) -> None:
        self.asked = False
        self.signalled = False
        self.forced = False
        self.on_force: Callable[[], None] = lambda: None
        self.wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    def listen(self) -> None:
        """Handle this process's signals from now on. A signal ignored at its start, as by nohup, stays ignored."""
        _handle(self._hear, self._force)

    def ask(self) -> None:
        """Begin nothing new."""
        self.asked = True
        try:
            os.write(self._waker, b"!")
        except BlockingIOError:
            pass  # 64 KiB of wake-up calls are waiting already

    def _hear(self) -> None:
        self.signalled = True
        self.ask()

    def _force(self) -> None:
        self.forced = True
        self.on_force()


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def signals(stop: Callable[[], object], interrupt: Callable[[], object] = _interrupt) -> Iterator[None]:
    """Handle signals in the main thread: the first stops, the second interrupts, the third has the system's effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _handle(stop, interrupt)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def _handle(first: Callable[[], object], second: Callable[[], object]) -> dict[signal.Signals, Any]:
    """Call ``first`` at the first signal and ``second`` at the second; return the handlers from before."""
    heard = False

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            first()
            return
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        second()

    # A signal ignored at the process's start, as by nohup, stays ignored.
    before = {number: was for number in SIGNALS if (was := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, hear)
    return before
