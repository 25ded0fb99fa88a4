"""A server that freezes in the middle of a transaction holds nobody: each statement of ours has a limit of time."""

import asyncio
import contextlib
import os
import signal
import threading

import pytest

from onceward import Once, StoreError
from onceward.stores import open_store
from servers.postgres import Postgres

pytestmark = [pytest.mark.sampled(hand=1), pytest.mark.parametrize("postgres", [Postgres], indirect=True, ids=["15"])]


@pytest.fixture
def once(schema):
    """A statement may take two seconds, and the fate of a COMMIT is asked for until the lease ends."""
    patient = Once(schema)
    patient.ledger.stats()  # makes the tables, which may take as long as a busy machine needs
    patient.close()
    made = Once(open_store(f"{schema}&timeout=2"), name="n", lease=4)
    yield made
    made.close()


@pytest.fixture
def freeze(postgres):
    """Freeze the server's process of a connection; it goes on much later, so that a test without a limit fails."""
    timers = []

    def frozen(name):
        ((pid,),) = postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = %s", name)
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(60, thaw, [pid])
        timer.start()
        timers.append((timer, pid))

    yield frozen
    for timer, pid in timers:
        timer.cancel()
        thaw(pid)


def thaw(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("at", ["commit", "claim"])
def test_a_transaction_on_a_frozen_server_ends_in_time(once, hand, freeze, at):
    async def body():
        async with hand.connection() as connection:
            async with hand.within(once.transaction("before", connection)):
                await hand.sql(connection, f"SET application_name = '{hand.table}'")
            if at == "claim":
                freeze(hand.table)
            with pytest.raises(StoreError, match="not answered in time" if at == "claim" else None):
                async with hand.within(once.transaction("k", connection)):
                    assert at == "commit", "nothing was claimed"
                    freeze(hand.table)

    asyncio.run(body())
