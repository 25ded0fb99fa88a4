"""What a strike does to an actor: exceptions, kills, pauses, cancellations."""

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from torture.points import ASYNCIO, HOME, is_callback

AGAIN = 0.00005  # seconds until a timer that met the actor's own code tries again


class SoftLimit(Exception):
    """A time limit that is an Exception, as Celery's SoftTimeLimitExceeded."""


class HardStop(BaseException):
    """One that is none."""


class Declined(Exception):
    """The handler's own failure."""


RAISED = {"soft": SoftLimit, "hard": HardStop, "sigint": KeyboardInterrupt}


def strike(actor: Any, kind: str, frame: FrameType | None = None) -> None:
    """Do to this process what ``kind`` says."""
    actor.strikes += 1
    serial = f"{os.getpid()}-{actor.strikes}"
    actor.journal("strike", kind=kind, serial=serial, **_place(frame), phase=actor.points.phase, call=actor.call)
    if kind in RAISED:
        raise RAISED[kind](serial)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif actor.task is not None:
        actor.task.cancel(serial)


def _place(frame: FrameType | None) -> dict[str, object]:
    if frame is None:
        return {"where": "the handler", "function": "", "callback": False}
    where = f"{os.path.relpath(frame.f_code.co_filename, HOME)}:{frame.f_lineno}"
    outermost = frame
    while outermost.f_back is not None and not outermost.f_back.f_code.co_filename.startswith(ASYNCIO):
        outermost = outermost.f_back
    return {"where": where, "function": frame.f_code.co_name, "callback": is_callback(outermost) or _is_dropped(frame)}


def _is_dropped(frame: FrameType | None) -> bool:
    """Return whether Python drops what is raised here: ``__del__``, a WeakSet that hears of a dead object."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "_remove" and code.co_filename.endswith("_weakrefset.py")):
            return True
        frame = frame.f_back
    return False


def in_onceward(frame: FrameType | None) -> bool:
    """Return whether the innermost frame is onceward's: only there does a timer strike."""
    return frame is not None and frame.f_code.co_filename.startswith(HOME)


class Timers:
    """Real signals, and exceptions set by another thread, after so many seconds of a delivery."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._kind: str | None = None
        self._thrown = {kind: self._traced(kind) for kind in RAISED}
        signal.signal(signal.SIGALRM, self._alarm)
        signal.signal(signal.SIGINT, self._alarm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see Episode.run

    def arm(self, timer: tuple[str, float] | None) -> None:
        if timer is None:
            return
        kind, seconds = timer
        how, _, self._kind = kind.partition("-")
        # So that nothing comes between a look and a throw. A thread that is about to be started has its parent's ident: CPython 3.11
        # would throw there, before it says that it has started, and its parent would wait for ever.
        sys.setswitchinterval(60.0 if how == "async" else 0.005)
        if how == "timer":
            signal.setitimer(signal.ITIMER_REAL, seconds)
        else:
            target = threading.current_thread().ident
            threading.Thread(target=self._throw, args=(target, seconds, self._actor.call), daemon=True).start()

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._kind = None

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        kind = "sigint" if number == signal.SIGINT else self._kind
        if kind is None or self._actor.points.phase is None:
            return
        if not in_onceward(frame):
            if number == signal.SIGINT:
                self._kind = "sigint"
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        self._kind = None
        strike(self._actor, kind, frame)

    def _throw(self, target: int, seconds: float, call: str) -> None:
        time.sleep(seconds)
        actor = self._actor
        while self._kind is not None and actor.call == call:
            frame = sys._current_frames().get(target)
            if in_onceward(frame) and self._kind is not None:
                kind, self._kind = self._kind, None
                # First, for the journal lets other threads run.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), ctypes.py_object(self._thrown[kind]))
                actor.strikes += 1
                actor.journal("strike", kind=kind, serial="", **_place(frame), phase=actor.points.phase, call=call)
                return
            time.sleep(AGAIN)

    def _traced(self, kind: str) -> type[BaseException]:
        """Return the exception of a kind, as a class that journals that a frame caught it: Python 3.11 makes the instance there."""

        def caught(error: BaseException) -> None:
            frame = sys._getframe(1)
            self._actor.journal("caught", call=self._actor.call, **_place(frame))

        raised = RAISED[kind]
        return type(raised.__name__, (raised,), {"__init__": caught})
