"""A server that freezes in the middle of a transaction holds nobody: each statement of ours has a limit of time."""

import asyncio
import os
import signal
import threading
import uuid
from pathlib import Path

import pytest

from mysql_hands import HANDS
from mysql_servers import Mariadb
from onceward import Once, StoreError
from onceward.stores import open_store


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
    """Statements may take a second."""
    made = Once(open_store(f"{hand.url}?timeout=1"), name="n", lease=2)
    yield made
    made.close()


@pytest.fixture
def freeze(server):
    """Freeze the server; it goes on much later, so that a test without a limit fails."""
    timer = threading.Timer(40, os.kill, [server.pid, signal.SIGCONT])

    def frozen():
        os.kill(server.pid, signal.SIGSTOP)
        timer.start()

    yield frozen
    timer.cancel()
    os.kill(server.pid, signal.SIGCONT)


async def use(hand, once, freeze, *, within):
    async with hand.connection() as connection:
        async with hand.within(once.transaction("before", connection)):
            await hand.act(connection)
        with pytest.raises(StoreError) as told:
            if not within:
                freeze()
            async with hand.within(once.transaction("k", connection)):
                assert within, "nothing was claimed"
                await hand.act(connection)
                freeze()
        return told.value


@pytest.mark.parametrize("within", [True, False], ids=["commit", "claim"])
def test_a_transaction_on_a_frozen_server_ends_in_time(once, hand, freeze, server, within):
    asyncio.run(use(hand, once, freeze, within=within))
    state = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "T", "it is still frozen"
