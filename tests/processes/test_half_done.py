"""Workers are killed in the middle of a handler, and nobody delivers again: completers in other processes run the keys to their end."""

import json
import signal
import time

import pytest

from faults.processes import PATIENCE, workers
from onceward import Claim, Once


@pytest.fixture
def start():
    with workers("completer_worker.py") as begin:
        yield begin


def half_done(start, ledger, journal, keys, role="half", begun=None):
    """Begin so many keys, and kill their worker after the first step of each."""
    process = start(ledger.url, journal, keys, ledger.lease, role)
    end = time.monotonic() + PATIENCE
    while not journal.exists() or journal.read_text().count(f"{role} ") < (begun or keys):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def check(ledger, journal, keys, attempts=(2,)):
    told = [line.split() for line in journal.read_text().splitlines()]
    once = Once(ledger.url)
    records = {record.key: record for record, _ in once.ledger.records()}
    assert len(records) == keys
    for n in range(keys):
        record = records[f"half:{n}"]
        assert (record.status, record.input) == ("COMPLETED", None)
        assert record.attempts in attempts
        assert json.loads(record.result) == [f"charge {n} 1", f"note {n}", f"mail {n} {record.attempts}"]
        effects = [words for words in told if words[0] == "effect" and words[2] == str(n)]
        assert effects == [["effect", "charge", str(n), "1"], ["effect", "mail", str(n), str(record.attempts)]]
    once.close()
    return sum(int(words[1]) for words in told if words[0] == "completer")


@pytest.mark.sampled("sqlite-awaited")
@pytest.mark.parametrize("role", ["plain", "awaited"])
def test_a_completer_finishes_what_a_killed_worker_began(ledger, start, tmp_path, role):
    journal = tmp_path / "journal"
    half_done(start, ledger, journal, 3)
    completer = start(ledger.url, journal, 3, ledger.lease, role)
    assert completer.wait(PATIENCE) == 0
    assert check(ledger, journal, 3) == 3


@pytest.mark.sampled("postgresql")
def test_what_a_killed_completer_began_is_finished_by_another(ledger, start, tmp_path):
    journal = tmp_path / "journal"
    half_done(start, ledger, journal, 3)
    half_done(start, ledger, journal, 3, "stuck", 1)
    completer = start(ledger.url, journal, 3, ledger.lease, "plain")
    assert completer.wait(PATIENCE) == 0
    assert check(ledger, journal, 3, (2, 3)) == 3


@pytest.mark.sampled("mysql")
def test_completers_and_a_client_at_once_finish_each_key_once(ledger, start, tmp_path):
    journal, keys = tmp_path / "journal", 20
    ledger.lease = max(ledger.lease, 10.0)  # so that a machine whose disk is busy renews it
    half_done(start, ledger, journal, keys)
    running = [start(ledger.url, journal, keys, ledger.lease, role) for role in ("plain", "awaited", "client")]
    for process in running:
        assert process.wait(PATIENCE) == 0
    assert check(ledger, journal, keys) <= keys


def test_what_commits_with_its_effect_drops_the_arguments(ledger):
    once = Once(ledger.url)
    during = []

    @once(key="n", name="kept", keep_input=True)
    def handle(n: int, claim: Claim):
        during.append(once.ledger.show("kept:7")[0].input)
        ledger.spend(claim, "effect", n)
        return n

    assert handle(7) == 7
    assert json.loads(during[0])["arguments"] == {"n": 7}
    record, _ = once.ledger.show("kept:7")
    assert (record.status, record.input) == ("COMPLETED", None)
    assert ledger.spent() == {"effect": 1}
    once.close()
