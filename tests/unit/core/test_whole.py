"""Steps that see each interrupt."""

import asyncio
import dis
import sys

import pytest

from onceward.core.whole import CALLS, _drive, _drive_async, drive_whole, drive_whole_async


async def one():
    return 1


def interrupting(code):
    """Return a tracer that raises at the second jump back of the loop, where CPython looks for signals."""
    jumps = {one.offset for one in dis.get_instructions(code) if one.opname.startswith("JUMP_BACKWARD")}
    left = [2]

    def trace(frame, event, _):
        if frame.f_code is code:
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti in jumps:
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize(("drive", "loop"), [(drive_whole, _drive), (drive_whole_async, _drive_async)])
def test_an_interrupt_between_two_steps_is_seen_by_them(drive, loop):
    seen = []

    def steps():
        for _ in range(4):
            try:
                yield one if drive is drive_whole_async else int
            except KeyboardInterrupt:
                seen.append("interrupted")
        return "done"

    before = sys.gettrace()
    sys.settrace(interrupting(loop.__code__))
    try:
        result = asyncio.run(drive(steps(), CALLS)) if drive is drive_whole_async else drive(steps(), CALLS)
    finally:
        sys.settrace(before)
    assert (result, seen) == ("done", ["interrupted"])
