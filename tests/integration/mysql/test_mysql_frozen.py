"""A server that freezes in the middle of a transaction holds nobody: each statement of ours has a limit of time."""

import asyncio
import os
import signal
import threading
import uuid
from pathlib import Path

import pytest

from faults import processes
from onceward import Once, StoreError
from onceward.stores import open_store
from servers.mysql import Mariadb
from stores.mysql_hands import HANDS

pytestmark = pytest.mark.sampled(hand=1)


@pytest.fixture(scope="module")
def server():
    made = Mariadb()
    yield made
    made.stop()


@pytest.fixture(params=["pymysql", "asyncmy", "Session", "AsyncSession", "Django"])
def hand(request, server):
    name = f"ledger_{uuid.uuid4().hex}"
    url = server.database(name)
    server.sql("CREATE TABLE effects (value varchar(100))", database=name)
    return HANDS[request.param](url, "effects")


@pytest.fixture
def once(hand):
    """A statement may take two seconds, and the fate of a COMMIT is asked for until the lease ends."""
    patient = Once(hand.url)
    patient.ledger.stats()  # makes the tables, which may take as long as a busy machine needs
    patient.close()
    made = Once(open_store(f"{hand.url}?timeout=2"), name="n", lease=4)
    yield made
    made.close()


@pytest.fixture
def freeze(server):
    """Freeze the server; it goes on much later, so that a test without a limit fails."""
    timer = threading.Timer(60, os.kill, [server.pid, signal.SIGCONT])

    def frozen():
        processes.freeze(server.pid)
        timer.start()

    yield frozen
    timer.cancel()
    os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("at", ["commit", "claim"])
def test_a_transaction_on_a_frozen_server_ends_in_time(once, hand, freeze, server, at):
    async def body():
        async with hand.connection() as connection:
            async with hand.within(once.transaction("before", connection)):
                await hand.act(connection)
            if at == "claim":
                freeze()
            with pytest.raises(StoreError):
                async with hand.within(once.transaction("k", connection)):
                    assert at == "commit", "nothing was claimed"
                    await hand.act(connection)
                    freeze()

    asyncio.run(body())
    assert processes.state_of(Path(f"/proc/{server.pid}")) == "T", "it is still frozen"
