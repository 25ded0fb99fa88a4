"""What a driver does on the caller's connection ends in time, by its socket, and a socket that was in time is left alone."""

import os
import socket
import time
import warnings

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_leaves_the_parents_connections_alone():
    for limit in (0.3, 1.0, 3.0, 10.0, 30.0):  # a busy machine may fork for longer than the limit
        ends, began = socket.socketpair(), time.monotonic()
        with limited(ends[0], limit):
            with warnings.catch_warnings(action="ignore"):  # of threads
                child = os.fork()
            if not child:
                with limited(socket.socketpair()[0], 60):  # which starts its thread
                    time.sleep(3 * limit)
                os._exit(0)
        is_in_time = time.monotonic() - began < 0.6 * limit
        os.waitpid(child, 0)
        if is_in_time:
            break
        for end in ends:
            end.close()
    ends[1].send(b"a")
    read(ends[0])
    for end in ends:
        end.close()
