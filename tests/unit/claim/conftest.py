"""What steps are tested with: a handler in each form, and what it has done."""

import pytest


@pytest.fixture(params=["called", "awaited"])
def form(request):
    return request.param


@pytest.fixture
def effects():
    return []
