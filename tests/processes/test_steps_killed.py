"""Workers are killed in the middle of handlers with steps, on a ledger of every store."""

import random
import signal
import time

import pytest

from onceward import Once
from processes import PATIENCE, workers

KEYS = 40


@pytest.fixture
def start():
    with workers("steps_worker.py") as begin:
        yield begin


def test_killed_workers_repeat_no_recorded_step(ledger, start, tmp_path):
    journal, chance = tmp_path / "journal", random.Random(5)

    def begin():
        process = start(ledger.url, journal, KEYS, ledger.lease)
        assert process.stdout.readline() == "ready\n"
        return process

    running = [begin() for _ in range(3)]
    kills = 0
    while kills < 8:
        time.sleep(0.05 + chance.random() * 0.2)
        victim = running.pop(chance.randrange(3))
        victim.kill()
        kills += victim.wait() == -signal.SIGKILL
        running.append(begin())
        if all(process.poll() is not None for process in running):
            break
    for process in running:
        assert process.wait(PATIENCE) == 0
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
