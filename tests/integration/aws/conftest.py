"""Queues on a server, behind the proxy ``front``, and a command line that finds them."""

import pytest

from commands.command_line import Cli
from servers.needs import numbers

NAMES = numbers()


@pytest.fixture
def front(front, monkeypatch):
    """The proxy in front of the queues, where workers look for them, too."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", front.url)
    return front


@pytest.fixture
def made(front, ministack):
    """Makes queues without a dead-letter queue and with messages in them, and returns their URLs."""

    def make(*bodies, fifo=False, **attributes):
        url = ministack.queue(f"made-{next(NAMES)}{'.fifo' if fifo else ''}", **attributes)
        for body in bodies:
            ministack.send(url, body, body["group"] if fifo else None)
        return url

    return make


@pytest.fixture
def cli(aws, tmp_path):
    return Cli(tmp_path)
