"""Networks that swallow what is sent: no reset, no end, no answer. A claim gives up in time, and the handler does not run."""

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures import closing_fixture
from onceward import Once, StoreError
from servers.wires import Fault, Wire

pytestmark = pytest.mark.sampled(once=1)

PATIENCE = 60.0  # seconds; a claim asks for two, and then once more, for the second that a statement may take
BLACK_HOLE = Fault(freeze=600.0)
wire = closing_fixture(lambda postgres15: Wire(postgres15.port))


@pytest.fixture
def swallowing(wire):
    """A network that swallows what is sent on a connection in use, and on later ones."""
    url = f"postgresql://postgres@127.0.0.1:{wire.port}/test?schema=holes_{wire.port}"
    Once(url).acquire("made").complete(None)  # which can take longer
    once = Once(f"{url}&timeout=1")
    once.acquire("before").complete(None)
    wire.rule = lambda asked: BLACK_HOLE
    return once


@pytest.fixture
def silent(wire):
    """A server that takes connections and says nothing."""
    wire.rule = lambda asked: BLACK_HOLE
    return Once(f"postgresql://postgres@127.0.0.1:{wire.port}/test?timeout=1")


@pytest.fixture
def unreachable():
    """A server whose backlog is full: it does not answer the first packet."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        while True:
            end = stack.enter_context(socket.socket())
            end.settimeout(0.3)
            try:
                end.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield Once(f"postgresql://postgres@127.0.0.1:{port}/test?timeout=1")


once = closing_fixture(
    lambda request: request.getfixturevalue(request.param), params=["swallowing", "silent", "unreachable"]
)


def never():
    raise AssertionError


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_claim_gives_up_in_time(once, mode):
    with ThreadPoolExecutor(1) as threads, pytest.raises(StoreError) as caught:
        if mode == "sync":
            threads.submit(once.run, "key", never).result(PATIENCE)
        else:
            asyncio.run(asyncio.wait_for(once.run_async("key", never), PATIENCE))
    assert caught.value.transient
