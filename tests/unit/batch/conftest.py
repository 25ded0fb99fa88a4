"""What batches and checkpoints are tested with."""

import pytest

from onceward import Once
from queues.batches import FORMS, Form
from queues.checkpoints import Sink


@pytest.fixture
def once():
    return Once("memory:", lease=10)


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture(params=FORMS)
def form(request):
    return Form(request.param)
