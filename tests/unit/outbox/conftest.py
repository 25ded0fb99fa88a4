import pytest

from onceward import Once
from onceward.stores.memory import MemoryStore
from queues.boxes import Box


@pytest.fixture
def box():
    return Box()


@pytest.fixture
def once():
    return Once(MemoryStore())


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("onceward.outbox.sending.FIRST_PAUSE", 0.02)
