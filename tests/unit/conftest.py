"""What most units are tested with: a ledger in memory, on a clock that the test moves."""

import pytest

from onceward import Once
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def once(clock):
    return Once(MemoryStore(clock), clock=clock)
