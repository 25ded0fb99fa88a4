"""The interleaving explorer: what it sees of the real protocol, and that it notices a broken one."""

import time
from collections.abc import Callable

import pytest

from onceward.core import protocol
from onceward.core.drive import Steps
from onceward.core.policy import Policy
from onceward.core.protocol import Bid, Lost, Won
from onceward.core.record import COMPLETED, IN_PROGRESS, Record, Reply, Write
from onceward.stores.memory import MemoryStore
from onceward.testing.actors import Parts
from onceward.testing.explorer import Bounds, Seen, explore

SHOW: list[str] = []


def seen_by(capsys, label: str, **options) -> Seen:
    start = time.perf_counter()
    seen = explore(**options)
    with capsys.disabled():
        print(f"\n  explorer, {label}: {seen} ({time.perf_counter() - start:.1f} s)", end="", flush=True)
    return seen


TWO = {
    "everything can go wrong once": dict(deliveries=1),
    "redelivered, two lapses": dict(beats=0, fails=False, bounds=Bounds(lapses=2, faults=1, crashes=1)),
    "two faults": dict(deliveries=1, beats=0, bounds=Bounds(lapses=1, faults=2, crashes=1)),
    "failing handlers, redelivered": dict(beats=0, bounds=Bounds(lapses=1, faults=0, crashes=1)),
    "interrupted claims": dict(beats=0, fails=False, bounds=Bounds(lapses=1, faults=1, crashes=0, interrupts=2)),
    "half leases": dict(
        deliveries=1, fails=False, bounds=Bounds(lapses=3, faults=1, crashes=0, strides=(0.6,))
    ),
    "parked at a lapse": dict(beats=0, policy=Policy(lease=60.0, on_lapse="park")),
    "two attempts at most": dict(
        beats=0, policy=Policy(lease=60.0, max_attempts=2), bounds=Bounds(lapses=1, faults=1, crashes=0)
    ),
    "records that expire": dict(beats=0, fails=False, policy=Policy(lease=60.0, retention=60.0), bounds=Bounds(2, 1, 0)),
}


@pytest.mark.parametrize("label", TWO)
def test_two_workers_keep_every_invariant_in_every_interleaving(capsys, label):
    seen = seen_by(capsys, f"2 workers, {label}", workers=2, **TWO[label])
    assert not seen.violations
    assert seen.states > 3_000


def test_three_workers_keep_every_invariant_in_every_interleaving(capsys):
    seen = seen_by(capsys, "3 workers", workers=3, deliveries=1, beats=0, fails=False)
    assert not seen.violations
    assert seen.states > 10_000
