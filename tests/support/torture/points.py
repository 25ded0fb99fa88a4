"""Strikes at the n-th point at which CPython may run a signal handler, or raise an asynchronous exception, in onceward.

CPython looks for signals only after certain instructions: at the start of a function, after a call of C code, and at a
jump backwards. So a strike between two other instructions would prove nothing. The tracer here follows the instructions
of onceward's own files and of what these call, counts these points, and strikes at those that a plan names. That is the same in each replay.
"""

import asyncio
import dis
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import onceward

HOME = str(Path(onceward.__file__).parent)
_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX") if name in dis.opmap}
_JUMPS = {code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name}
_RESUME = dis.opmap["RESUME"]
_LIBRARY = Path(asyncio.__file__).parent.parent
ASYNCIO = str(_LIBRARY / "asyncio")
# The handlers of the campaign, imports, and what an exception from a signal handler breaks whoever calls it: event loops,
# and the start of a thread.
_NOT_THESE = (str(Path(__file__).parent), "<", ASYNCIO, str(_LIBRARY / "threading.py"), str(_LIBRARY / "concurrent"))
_NOT_AFTER_AWAIT = 2  # RESUME with a larger argument continues an await, and does not look


class Points:
    """Counts the points of this thread, by phase, and calls ``strike(kind, frame)`` at those that are armed."""

    def __init__(self, strike: Callable[[str, FrameType], None]) -> None:
        self.phase: str | None = None
        self.counts: dict[str, int] = {}
        self._strike = strike
        self._armed: dict[tuple[str, int], str] = {}
        self._codes: dict[CodeType, Code] = {}

    def arm(self, strikes: list[tuple[str, int, str]]) -> None:
        """Take the strikes of one delivery: (phase, number of the point, kind)."""
        self.counts = {}
        self._armed = {(phase, n): kind for phase, n, kind in strikes}
        if self._armed:
            sys.settrace(self._enter)

    def disarm(self) -> None:
        self.phase = None
        sys.settrace(None)
        sys.setprofile(None)

    def code(self, frame: FrameType) -> "Code":
        """Return what a frame's code is, looked at once."""
        found = self._codes.get(frame.f_code)
        if found is None:
            found = self._codes[frame.f_code] = Code(frame.f_code)
        return found

    def hit(self, frame: FrameType) -> None:
        """Take in that ``frame`` is at a point."""
        if self.phase is None:
            return
        n = self.counts[self.phase] = self.counts.get(self.phase, 0) + 1
        kind = self._armed.pop((self.phase, n), None)
        if kind is not None:
            if self._armed:
                sys.setprofile(self._again)  # a trace function that raises is taken out
            self._strike(kind, frame)
            sys.setprofile(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> "_Follow | None":
        back = frame.f_back
        from_ours = back is not None and type(back.f_trace) is _Follow
        if from_ours:
            back.f_trace.in_python = True
        return self._followed(frame, from_ours)

    def _followed(self, frame: FrameType, from_ours: bool) -> "_Follow | None":
        name = frame.f_code.co_filename
        if not name.startswith(HOME) and (not from_ours or name.startswith(_NOT_THESE)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return _Follow(self, self.code(frame), first=not is_callback(frame))

    def _again(self, frame: FrameType | None, event: str, arg: object) -> None:
        sys.setprofile(None)
        sys.settrace(self._enter)
        while frame is not None:
            follow = self._followed(frame, from_ours=False)
            if follow is not None:
                frame.f_trace = follow
            frame = frame.f_back


def is_callback(frame: FrameType) -> bool:
    """Return whether an event loop calls it, and no task runs in it: as it begins, it cannot have caught anything yet."""
    back = frame.f_back
    coroutine = frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR)
    return not coroutine and back is not None and back.f_code.co_filename.startswith(ASYNCIO)


class Code:
    """The instructions of a function, and which of them catch exceptions together."""

    def __init__(self, code: CodeType) -> None:
        self.bytes = code.co_code
        self._caught = sorted((one.start, one.end, one.target) for one in dis.Bytecode(code).exception_entries)

    def catcher(self, at: int) -> int:
        """Return where an exception that is raised at an instruction goes on."""
        return next((target for start, end, target in self._caught if start <= at < end), -1)


class _Follow:
    __slots__ = ("_at", "_code", "_first", "_points", "in_python")

    def __init__(self, points: Points, code: Code, *, first: bool) -> None:
        self._points, self._code, self._first = points, code, first
        self._at = -1  # of the instruction before, if CPython looks for signals after it
        self.in_python = False  # whether the call that is under way entered Python code, after which nobody looks

    def __call__(self, frame: FrameType, event: str, arg: object) -> "_Follow":
        if event != "opcode":
            return self
        code, was, at = self._code, self._at, frame.f_lasti
        kind = code.bytes[at]
        looks = kind in _CALLS or kind in _JUMPS
        looks = looks or (self._first and kind == _RESUME and code.bytes[at + 1] < _NOT_AFTER_AWAIT)
        self._at = at if looks else -1
        if was >= 0:
            called = code.bytes[was] in _CALLS
            in_python, self.in_python = self.in_python and called, False
            # The strike comes one instruction late: never where another `try` or `with` would catch it.
            if not in_python and code.catcher(was) == code.catcher(at):
                self._points.hit(frame)
        return self
