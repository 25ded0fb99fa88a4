"""What the tests of failovers share: workers that go through keys while their server fails, and what their log says."""

import time

from faults.processes import PATIENCE, lines
from onceward import Once

LEASE = 60.0  # seconds: longer than any failover here
COUNT = 120
PACE = 0.2  # seconds that a handler takes at most, where a failover must come before all is done


def noted(log, what):
    """Return the words after ``what`` of the log's whole lines: key, value, and on Redis the fence."""
    text = log.read_text().rpartition("\n")[0]
    return [tuple(rest) for kind, *rest in map(str.split, text.splitlines()) if kind == what]


def wait_for(log, what, number):
    end = time.monotonic() + PATIENCE
    while len(noted(log, what)) < number:
        assert time.monotonic() < end
        time.sleep(0.005)


def records(url):
    return {record.key.partition(":")[2]: record for record, _ in Once(url).ledger.records(prefix="k:")}


def end(processes):
    for process in processes:
        assert lines(process) == ["done"]
