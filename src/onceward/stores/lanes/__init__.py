"""Callers that wait for a connection leave together, as one batch.

A store has a few connections, its lanes. A request that finds a free lane goes at once, alone. A request that finds none waits in
line. When a lane comes free, what waits leaves together, in one request for many keys. There is no timer: waiting is batching.

Threads share lanes, and each event loop has lanes of its own. In a thread, the first of a batch carries it. On a loop, a task does.

Hazards, and what answers them:
- One key twice in a line: the two never leave together, so that the second sees what the first did.
- A batch that the server refuses: each of its requests goes alone, so that only the one to blame fails.
- A lost connection, or an interrupted carrier: all of the batch is in doubt. The protocol's steps recognise their own writes.
- A waiter that is cancelled before its request has left withdraws it. Later, it is in doubt.
- Ends and heartbeats leave before claims, but not for ever: see ``WaitingLine``.
- A lane that does not come back: a waiter gives up after ``timeout`` in the line, and after twice as long once it has left.
- A server that takes no more connections: the lane that could not open goes, and those that are open serve the line. Its request waits there.
- A fork: the child makes its own lanes. The end of a loop: its lanes are closed.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from onceward.stores.lanes.lane import ServerLane
from onceward.stores.lanes.line import ArgumentsOf, LaneRequest
from onceward.stores.lanes.loops import LoopLanes
from onceward.stores.lanes.threads import ThreadLanes

_INHERITED: Final[list[object]] = []  # by a fork
_Loops = WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLanes]


class _Here(NamedTuple):
    """The lanes of one process: one value, so that no thread of a forked child sees half of a change."""

    process: int
    threads: ThreadLanes
    loops: _Loops


class LedgerLanes:
    """The lanes of one ledger in this process.

    Args:
        make: makes a lane that is not open yet, for threads.
        make_async: the same for coroutines: its ``fetch`` is awaited.
        most: how many there are, for all threads together, and as many for each event loop.
        timeout: seconds to wait for one.
        leave_on: codes of errors by which a server says that it should be left.
    """

    def __init__(
        self,
        make: Callable[[], ServerLane],
        make_async: Callable[[], ServerLane],
        most: int,
        timeout: float,
        leave_on: frozenset[str] = frozenset(),
    ) -> None:
        self._make, self._make_async, self._others = make, make_async, (most, timeout, leave_on)
        self._here = self._new()

    def _new(self) -> "_Here":
        return _Here(os.getpid(), ThreadLanes(self._make, *self._others), WeakKeyDictionary())

    def run(self, request: LaneRequest, arguments: ArgumentsOf) -> Any:
        """Do one request, and return its reply.

        Raises:
            SqlRefusal: the server refused it.
            Broken: the connection was lost, or there is none. It is in doubt.
            ValueError: a value cannot be sent.
        """
        here = self._here if self._here.process == os.getpid() else self._mine()
        return here.threads.run(request, arguments)

    def run_async(self, request: LaneRequest, arguments: ArgumentsOf) -> Awaitable[Any]:
        """As :meth:`run`, for a coroutine, which awaits what this returns."""
        loop, loops = asyncio.get_running_loop(), self._mine().loops
        return (loops.get(loop) or self._of(loop, loops)).run(request, arguments)

    def _mine(self) -> "_Here":
        """Return the lanes of this process. The parent's are left to the parent: to drop one would say a word on its connection."""
        here = self._here
        if here.process != os.getpid():
            _INHERITED.append(here)
            if self._here is here:  # else another thread was faster
                self._here = self._new()
            here = self._here
        return here

    def _of(self, loop: asyncio.AbstractEventLoop, loops: _Loops) -> LoopLanes:
        """Return the lanes of an event loop, and close those of loops that have ended."""
        # Another thread may be adding its own loop, which items() would not bear.
        for other in [there for ref in loops.keyrefs() if (there := ref()) is not None]:
            if other.is_closed() and (theirs := loops.pop(other, None)) is not None:
                theirs.clear()
        return loops.setdefault(loop, LoopLanes(self._make_async, *self._others))

    def close(self) -> None:
        """Close the idle lanes. One in use is closed when its request ends. The next use makes others."""
        here = self._mine()
        self._here = self._new()
        for lanes in (here.threads, *list(here.loops.values())):
            lanes.close()
