"""The off switch for unit tests: guarded functions run as if they had no guard."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, cast
from unittest import mock

from onceward.core.record import Record, Reply, Write
from onceward.errors import KeyMissing
from onceward.http.route import PendingRequest
from onceward.http.rules import Rules
from onceward.keys.reading import KeyReader
from onceward.observe.logs import logger
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.testing.stage import Stage

_RUNNERS: Final = ("_pytest.", "unittest.case", "unittest.suite")  # modules that run tests


@contextmanager
def off() -> Iterator[None]:
    """Run guarded functions without a guard: each call runs, nothing is recorded, no ledger is asked, and no key is needed.

    ::

        with onceward.testing.off():
            assert charge({"amount": 5}) == charge({"amount": 5})     # both ran

    ``onceward.current()``, steps and derived keys work. Messages and jobs go nowhere. It is in effect for the whole
    process, so also in its threads.

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
    read, begin_strictly = KeyReader.key, Rules.begin  # where a request without a key is refused

    def key(self: KeyReader, *inputs: Any) -> object:
        try:
            return read(self, *inputs)
        except KeyMissing:
            return _any_key()

    def begin(self: Rules, request: Any, route: Any = None) -> Any:
        route = route or self.route(request.method, request.path)
        if route is None or route.read is not None or request.lines(route.header):
            return begin_strictly(self, request, route)
        answer = begin_strictly(self, cast("Any", _WithKey(request, route.header)), route)
        return answer._replace(request=request) if isinstance(answer, PendingRequest) else answer

    with (
        Stage(ManualClock(), _Forgetful, off=True),
        mock.patch.object(KeyReader, "key", key),
        mock.patch.object(Rules, "begin", begin),
        mock.patch.object(Rules, "_keyless", return_value=None),
    ):
        yield


class _Forgetful(MemoryStore):
    """A store that grants everything and keeps nothing."""

    def _insert(self, write: Write) -> Reply:
        now = self._clock()
        return Reply(True, write.at(now), now)

    def _swap(self, write: Write, _: Record) -> Reply:
        return self._insert(write)


class _WithKey:
    """A request that came without a key, with one."""

    def __init__(self, request: Any, header: str) -> None:
        self._request = request
        self._header = header

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def lines(self, name: str) -> list[str]:
        return [_any_key()] if name == self._header else cast("list[str]", self._request.lines(name))


def _any_key() -> str:
    return os.urandom(16).hex()


def _within_test() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(_RUNNERS):
        frame = frame.f_back
    return frame is not None
