"""How many requests a claim takes: the counts that docs/explanation/architecture.md promises."""

import contextlib
import itertools

from onceward import Once
from onceward.testing import Faults


def fail():
    raise ValueError("boom")


def test_a_first_call_takes_two_a_duplicate_one_a_failed_one_two_and_its_retry_three(store):
    counted = Faults(store, lambda ask: None)
    once, totals = Once(counted, name="n"), [0]
    for key, function in (("k", int), ("k", int), ("other", fail), ("other", int)):
        with contextlib.suppress(ValueError):
            once.run(key, function)
        totals.append(len(counted.asked))
    assert [after - before for before, after in itertools.pairwise(totals)] == [2, 1, 2, 3]
