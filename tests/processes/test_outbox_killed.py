"""Workers are killed and paused while their messages are sent, on a ledger of every store."""

import os
import signal
import time

import pytest

from faults.processes import killed_in_turn, lines, workers
from onceward import Once


@pytest.fixture
def start():
    with workers("outbox_worker.py") as begin:
        yield begin


def sent(journal):
    return [tuple(line.split()) for line in journal.read_text().splitlines()]


def duplicates_until(true, start, ledger, journal):
    """Deliver the message again, as a queue does, until that is true."""
    for _ in range(40):
        assert lines(start(ledger.url, journal, "all")) == ["placed", "0"]
        if true():
            return
        time.sleep(0.3)
    pytest.fail("no duplicate has sent the messages")


def is_struck_out(ledger):
    once = Once(ledger.url)
    ((record, _),) = once.ledger.records()
    once.close()
    return record.unsent is None


@pytest.mark.sampled("sqlite-before", "postgresql-after")
@pytest.mark.parametrize(
    ("when", "bodies"), [("before", ["1", "2"]), ("after", ["1", "1", "2"])], ids=["before", "after"]
)
def test_a_duplicate_sends_what_a_killed_worker_has_not(ledger, start, tmp_path, when, bodies):
    journal = tmp_path / "journal"
    worker = start(ledger.url, journal, when)
    assert {worker.stdout.readline(), worker.stdout.readline()} == {"placed\n", f"{when}\n"}
    worker.kill()
    assert worker.wait() == -signal.SIGKILL
    assert not is_struck_out(ledger)
    duplicates_until(lambda: is_struck_out(ledger), start, ledger, journal)
    assert [body for _, body in sent(journal)] == bodies
    assert len({key for key, _ in sent(journal)}) == 2


@pytest.mark.sampled("dynamodb")
def test_a_worker_that_is_paused_past_its_send_lease_sends_nothing_more(ledger, start, tmp_path):
    journal = tmp_path / "journal"
    worker = start(ledger.url, journal, "slow")
    assert {worker.stdout.readline(), worker.stdout.readline()} == {"placed\n", "before\n"}
    os.kill(worker.pid, signal.SIGSTOP)
    duplicates_until(lambda: is_struck_out(ledger), start, ledger, journal)
    assert [body for _, body in sent(journal)] == ["1", "2"]
    os.kill(worker.pid, signal.SIGCONT)
    assert lines(worker) == ["after", "0"]
    # The request that was on its way arrives late, with the same key; the next message is not sent by this worker.
    assert [body for _, body in sent(journal)] == ["1", "2", "1"]
    assert len({key for key, _ in sent(journal)}) == 2


@pytest.mark.sampled("mysql")
def test_a_worker_that_ends_sends_its_messages_first(ledger, start, tmp_path):
    journal = tmp_path / "journal"
    assert lines(start(ledger.url, journal, "all"))[0] == "placed"
    assert [body for _, body in sent(journal)] == ["1", "2"]
    assert is_struck_out(ledger)


KEYS = 60


@pytest.fixture
def crowd():
    with workers("outbox_crowd.py") as begin:
        yield begin


@pytest.mark.sampled("dynamodb")
def test_killed_workers_lose_no_message_and_no_order(ledger, crowd, tmp_path):
    journal = tmp_path / "journal"
    kills = killed_in_turn(lambda life: crowd(ledger.url, journal, KEYS, ledger.lease, life))
    assert kills >= 3
    once = Once(ledger.url)
    records = {record.key: record for record, _ in once.ledger.records()}
    once.close()
    assert {record.status for record in records.values()} == {"COMPLETED"}
    told = sent(journal)
    for n in range(KEYS):
        record = records[f"crowd:{n}"]
        mine = [(key, body) for key, body in told if body.startswith(f"{n}/")]
        # Only the attempt that was completed has sent, all of its messages, each under one key, and first in their order.
        firsts = list(dict.fromkeys(body for _, body in mine))
        assert firsts == [f"{n}/{record.attempts}/{number}" for number in range(3)], mine
        assert len({key for key, _ in mine}) == 3
