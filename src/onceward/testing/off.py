"""The off switch for unit tests: guarded functions run as if they had no guard."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from onceward.core.record import Record, Reply, Write
from onceward.observe.logs import logger
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.testing.stage import Stage

_RUNNERS: Final = ("_pytest.", "unittest.case", "unittest.suite")  # modules that run tests


@contextmanager
def off() -> Iterator[None]:
    """Run guarded functions without a guard: each call runs, nothing is recorded, and no ledger is asked.

    ::

        with onceward.testing.off():
            assert charge({"amount": 5}) == charge({"amount": 5})     # both ran

    ``onceward.current()``, steps and derived keys work. Messages and jobs go nowhere. An input or a request without its key is still
    refused. It is in effect for the whole process, so also in its threads.

    **Nothing is exactly-once meanwhile.** So it works in a running test only: within pytest or unittest. It writes a warning to
    the log. No variable of the environment and no setting turns it on.

    Raises:
        RuntimeError: no test is running in this thread.
    """
    if not _within_test():
        raise RuntimeError(
            "onceward.testing.off() is for tests: no test of pytest or unittest is running here. In production every effect "
            "could happen again"
        )
    logger().warning("onceward is OFF until this test ends: nothing is recorded, and every duplicate runs")
    with Stage(ManualClock(), _Forgetful):
        yield


class _Forgetful(MemoryStore):
    """A store that grants everything and keeps nothing."""

    def _insert(self, write: Write) -> Reply:
        now = self._clock()
        return Reply(True, write.at(now), now)

    def _swap(self, write: Write, _: Record) -> Reply:
        return self._insert(write)


def _within_test() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(_RUNNERS):
        frame = frame.f_back
    return frame is not None
