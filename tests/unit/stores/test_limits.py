"""What a driver does on the caller's connection ends in time, by its socket, and a socket that was in time is left alone."""

import socket
import time

import pytest

from onceward.stores.lanes.limits import limited
from onceward.stores.lanes.refusals import Broken


class Lost(Exception):
    """A driver's own error."""


def read(end):
    if not end.recv(1):
        raise Lost


@pytest.fixture
def ends():
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def test_a_server_that_does_not_answer_is_told_as_such(ends):
    with pytest.raises(Broken, match="not answered in time") as told, limited(ends[0], 0.05):
        read(ends[0])
    assert isinstance(told.value.__cause__, Lost)


def test_a_connection_whose_answer_came_in_time_stays_open(ends):
    for _ in range(3):
        with limited(ends[0], 60):
            ends[1].send(b"a")
            read(ends[0])
    with pytest.raises(Lost), limited(ends[0], 60):  # the driver's own error is its own
        raise Lost
    ends[1].send(b"a")
    read(ends[0])


def test_a_block_that_an_interrupt_has_lost_shuts_nothing_down(ends):
    limited(ends[0], 0.05).__enter__()  # and nobody leaves it
    time.sleep(0.6)
    ends[1].send(b"a")
    read(ends[0])
