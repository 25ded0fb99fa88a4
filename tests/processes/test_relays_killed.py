"""Two relays share the messages of a process that died, on a ledger of every store; one is killed, or the ledger goes away."""

import os
import signal
import time

import pytest

from faults.processes import workers
from onceward import Once
from onceward.outbox import register
from queues.boxes import left_by_a_crash
from queues.recorded_target import RecordedTarget
from stores.ledgers import LEDGERS, SERVED
from waiting import until

KEYS = 60


@pytest.fixture
def start():
    with workers("relay_worker.py") as begin:
        yield begin


@pytest.fixture
def leave(monkeypatch):
    """Leave two messages of each key, as a process does that dies right after its completions."""
    register("journal", lambda address: RecordedTarget())

    def left(url):
        once = Once(url, name="n", lease=3.0)
        for number in range(KEYS):
            left_by_a_crash(once, monkeypatch, f"k{number}", ("journal:", f"{number}-1"), ("journal:", f"{number}-2"))
        once.close()

    return left


def sent(journal):
    return [tuple(line.split()) for line in journal.read_text().splitlines()] if journal.exists() else []


def all_struck_out(url):
    once = Once(url)
    try:
        return list(once.ledger.records(status=["UNSENT", "REFUSED"])) == []
    finally:
        once.close()


def check(journal, before=0):
    """Nothing is lost, each key keeps its order, and what came twice came with one idempotency key.

    The first ``before`` can be those of a relay that was killed before it told: both messages of such a key come again.
    """
    told = sent(journal)
    bodies = [body for _, body in told]
    assert set(bodies) == {f"{number}-{part}" for number in range(KEYS) for part in (1, 2)}
    assert len(set(told)) == 2 * KEYS
    for number in range(KEYS):
        first, second = f"{number}-1", f"{number}-2"
        last_of_first = len(bodies) - 1 - bodies[::-1].index(first)
        assert bodies.index(first) < bodies.index(second)
        if second not in bodies[:before]:
            assert last_of_first < bodies.index(second)  # nobody sends the first again after the second
    return bodies


@pytest.mark.sampled("mysql")
def test_of_two_relays_one_is_killed_and_the_other_sends_the_rest(ledger, start, leave, tmp_path):
    journal = tmp_path / "journal"
    leave(ledger.url)
    killed, _ = start(ledger.url, journal), start(ledger.url, journal)
    until(lambda: len(sent(journal)) > KEYS // 4)
    os.kill(killed.pid, signal.SIGKILL)
    before = len(sent(journal))
    until(lambda: all_struck_out(ledger.url))
    bodies = check(journal, before)
    assert len(bodies) - 2 * KEYS <= before  # what the killed one had sent and not yet struck out


@pytest.mark.sampled("dynamodb")
@pytest.mark.parametrize("store", SERVED)
def test_relays_wait_for_a_ledger_that_goes_away(store, request, start, leave, tmp_path):
    journal = tmp_path / "journal"
    with LEDGERS[store].own_server(request, tmp_path) as (ledger, server):
        leave(ledger.url)
        for _ in range(2):
            start(ledger.url, journal)
        until(lambda: len(sent(journal)) > KEYS // 4)
        server.stop()
        time.sleep(2.0)
        before = len(sent(journal))  # what of it could not be struck out comes again
        server.start()
        until(lambda: all_struck_out(ledger.url))
        check(journal, before)
