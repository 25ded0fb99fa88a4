"""Being told to stop: the first signal ends the taking of lines, the second kills what runs, the third is the system's."""

import os
import signal
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether, and how urgently, this process was told to stop.

    Attributes:
        asked: finish what runs, begin nothing new.
        signalled: a signal asked for it.
        forced: do not wait for what runs, either.
        wake: a file descriptor that is readable once a signal came, for ``select``.
        on_force: called when ``forced`` is set; by a signal handler, so it must take no lock that the main thread holds.
    """

    def __init__(self) -> None:
        self.asked = False
        self.signalled = False
        self.forced = False
        self.on_force: Callable[[], None] = lambda: None
        self.wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    def listen(self) -> None:
        """Take the signals of this process from now on. One that it was started to ignore, as by nohup, stays so."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._hear)

    def ask(self) -> None:
        """Begin nothing new."""
        self.asked = True
        try:
            os.write(self._waker, b"!")
        except BlockingIOError:
            pass  # 64 KiB of wake-up calls are waiting already

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if not self.signalled:
            self.signalled = True
            self.ask()
            return
        self.forced = True
        signal.signal(number, signal.SIG_DFL)
        self.on_force()
