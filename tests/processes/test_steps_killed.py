"""Workers are killed in the middle of handlers with steps, on a ledger of every store."""

import os
import signal

import pytest

from faults.processes import killed_in_turn, lines, workers
from onceward import Once

KEYS = 80


@pytest.fixture
def start():
    with workers("steps_worker.py") as begin:
        yield begin


@pytest.mark.sampled("sqlite")
def test_killed_workers_repeat_no_recorded_step(ledger, start, tmp_path):
    journal = tmp_path / "journal"
    kills = killed_in_turn(lambda life: start(ledger.url, journal, KEYS, ledger.lease, life))
    assert kills >= 3
    told = [line.split() for line in journal.read_text().splitlines()]
    once = Once(ledger.url)
    records = {record.key: record for record, _ in once.ledger.records()}
    assert len(records) == KEYS
    for n in range(KEYS):
        record = records[f"steps:{n}"]
        mine = [words for words in told if words[2 if words[0] != "parked" else 1] == str(n)]
        made = {kind: [words for words in mine if words[:2] == ["effect", kind]] for kind in ("retry", "ask", "park")}
        assert len(made["retry"]) <= record.attempts, mine
        assert len(made["ask"]) == 1, mine
        assert len(made["park"]) <= 1, mine
        for kind in made:
            returned = [at for at, words in enumerate(mine) if words[:2] == ["returned", kind]]
            assert len({tuple(mine[at]) for at in returned}) <= 1, "a step gave two results"
            if returned:
                after = mine[returned[0] :]
                assert not [words for words in after if words[:2] == ["effect", kind]], "a recorded step ran again"
        if record.status == "PARKED":
            assert "'park'" in record.error
        else:
            assert (record.status, len(made["park"])) == ("COMPLETED", 1), mine
    assert sum(record.status == "PARKED" for record in records.values()) <= kills
    once.close()


@pytest.fixture
def start_stopped():
    with workers("steps_stopped.py") as begin:
        yield begin


@pytest.mark.sampled("sqlite-None", "dynamodb-+1h")
@pytest.mark.parametrize("offset", [None, "-1h", "+1h"])
def test_a_worker_that_hangs_in_a_step_is_refused_and_told(ledger, start_stopped, faketime, offset):
    zombie = start_stopped(ledger.url, ledger.lease, prefix=() if offset is None else faketime(offset))
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    once = Once(ledger.url, lease=10 * ledger.lease, name="steps")
    with once.claim("k", on_busy=30.0) as claim:
        assert claim.attempt == 2
        assert claim.step("pay", lambda: "the heir's" * 3_000) == "the heir's" * 3_000
        before = once.ledger.show("steps:k")[0]
        zombie.send_signal(signal.SIGCONT)
        assert lines(zombie) == ["pay LeaseLost True", "mail LeaseLost True"]
        assert once.ledger.show("steps:k")[0] == before
        claim.release()
    with once.claim("k") as claim:
        assert claim.step("pay", pytest.fail) == "the heir's" * 3_000
    once.close()
