"""The pytest plugin: fixtures for tests of your own handlers. It is on wherever onceward is installed.

- ``crashes``: each run of a crash test in turn (:class:`onceward.testing.Crashes`).
- ``once``: a ``Once`` with an empty ledger in memory, on ``clock``.
- ``clock``: moves the time of ``once`` and of ``crashes`` by hand, so that leases end without waiting.
- ``once_off``: guarded functions run as if they had no guard (:func:`onceward.testing.off`).

A fixture of your own with one of these names takes its place. Nothing is imported before a test asks for a fixture.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onceward.once import Once
    from onceward.testing.clock import ManualClock
    from onceward.testing.crashes import Crashes


@pytest.fixture(name="_onceward_clock")
def _own_clock() -> "ManualClock":
    """The clock of the fixtures here, also in a project that has its own ``clock``."""
    from onceward.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def clock(_onceward_clock: "ManualClock") -> "ManualClock":
    """Move the time of ``once`` and ``crashes`` by hand: ``clock.advance(61)`` lets a lease of a minute end."""
    return _onceward_clock


@pytest.fixture
def once(_onceward_clock: "ManualClock") -> "Once":
    """Return a ``Once`` with an empty ledger in memory, on ``clock``."""
    from onceward.once import Once
    from onceward.stores.memory import MemoryStore

    return Once(MemoryStore(_onceward_clock), clock=_onceward_clock)


@pytest.fixture
def crashes(_onceward_clock: "ManualClock") -> "Iterator[Crashes]":
    """Return the runs of a crash test: ``for crash in crashes: ...``. What is printed here, pytest shows of a test that fails."""
    from onceward.testing.crashes import Crashes

    crashes = Crashes(_onceward_clock)
    yield crashes
    if crashes.current is not None:
        sys.stdout.write(f"onceward: run {crashes.runs} of this crash test\n{crashes.current}\n")
    crashes.close()


@pytest.fixture
def once_off() -> Iterator[None]:
    """Turn all guards off for this test: each call runs (:func:`onceward.testing.off`)."""
    from onceward.testing.off import off

    with off():
        yield
