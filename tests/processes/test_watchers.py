"""Watchers as processes of one ledger: each incident is told once, and again only after a watcher was killed while it told."""

import collections
import time

import pytest

from onceward import Once
from processes import PATIENCE, lines, workers


@pytest.fixture
def start():
    with workers("watch_worker.py") as begin:
        yield begin


def lines_of(log, count):
    """Wait for so many lines of a file, and a while for more."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        told = log.read_text().splitlines() if log.exists() else []
        if len(told) >= count:
            time.sleep(0.5)
            return sorted(log.read_text().splitlines())
        time.sleep(0.05)
    raise AssertionError(f"told {told} in {PATIENCE} s")


def test_three_watchers_tell_each_incident_once(ledger, start, tmp_path):
    log = tmp_path / "log"
    once = Once(ledger.url)
    watchers = [start(ledger.url, log, 30) for _ in range(3)]
    for watcher in watchers:
        assert watcher.stdout.readline() == "ready\n"
    for number in range(10):
        once.acquire(number, name="n").park("no")
    assert lines_of(log, 10) == sorted(f"began parked n:{number}" for number in range(10))
    for number in range(5):
        once.ledger.unpark(f"n:{number}")
    told = collections.Counter(lines_of(log, 15))
    assert told == collections.Counter(
        [*(f"began parked n:{number}" for number in range(10)), *(f"over parked n:{number}" for number in range(5))]
    )
    for watcher in watchers:
        assert lines(watcher) == []
        assert watcher.returncode == 0


def test_what_a_killed_watcher_was_telling_another_one_tells(ledger, start, tmp_path):
    log = tmp_path / "log"
    once = Once(ledger.url)
    once.acquire("a", name="n").park("no")
    hanging = start(ledger.url, log, 4 * ledger.lease, "hang")
    assert hanging.stdout.readline() == "ready\n"
    assert hanging.stdout.readline() == "telling\n"
    others = [start(ledger.url, log, 4 * ledger.lease) for _ in range(2)]
    for watcher in others:
        assert watcher.stdout.readline() == "ready\n"
    hanging.kill()
    assert lines_of(log, 1) == ["began parked n:a"]
    once.ledger.clear("n:a")
    assert lines_of(log, 2) == ["began parked n:a", "over parked n:a"]
