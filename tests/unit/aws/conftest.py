"""What functions of Lambda are tested with."""

import pytest

from observing import note_outcomes
from onceward import Once
from web.api_events import Shop


@pytest.fixture
def once():
    return Once("memory:", name="n")


@pytest.fixture
def outcomes():
    told = []
    note_outcomes(told.append)
    return told


@pytest.fixture
def shop():
    return Shop()
