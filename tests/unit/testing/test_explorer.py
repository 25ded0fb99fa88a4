"""The interleaving explorer: what it sees of the real protocol, and that it notices a broken one."""

import time
from collections.abc import Callable

import pytest

from explorer.actors import Parts
from explorer.explore import Explored, explore
from explorer.states import Bounds
from onceward.core import many, protocol, steps, writes
from onceward.core.drivers import Steps
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, Record, Reply, Write
from onceward.core.step_writes import write_steps
from onceward.core.steps import Bid, Lost, Won
from onceward.errors import StoreError
from onceward.stores.memory import MemoryStore

pytestmark = pytest.mark.slow


def seen_by(capsys, label: str, **options) -> Explored:
    start = time.perf_counter()
    seen = explore(**options)
    with capsys.disabled():
        print(f"\n  explorer, {label}: {seen} ({time.perf_counter() - start:.1f} s)", end="", flush=True)
    return seen


TWO = {
    "everything can go wrong once": {"deliveries": 1},
    "redelivered, two lapses": {"beats": 0, "fails": False, "bounds": Bounds(lapses=2, faults=1, crashes=1)},
    "two faults": {"deliveries": 1, "beats": 0, "bounds": Bounds(lapses=1, faults=2, crashes=1)},
    "failing handlers, redelivered": {"beats": 0, "bounds": Bounds(lapses=1, faults=0, crashes=1)},
    "interrupted claims": {"beats": 0, "fails": False, "bounds": Bounds(lapses=1, faults=1, crashes=0, interrupts=2)},
    "half leases": {"deliveries": 1, "fails": False, "bounds": Bounds(lapses=2, faults=1, crashes=1, strides=(0.6,))},
    "parked at a lapse": {"beats": 0, "fails": False, "policy": Policy(lease=60.0, on_lapse="park")},
    "two attempts at most": {
        "beats": 0,
        "policy": Policy(lease=60.0, max_attempts=2),
        "bounds": Bounds(lapses=1, faults=1, crashes=0),
    },
    "records that expire": {
        "beats": 0,
        "fails": False,
        "policy": Policy(lease=60.0, retention=60.0),
        "bounds": Bounds(lapses=2, faults=1, crashes=0, purges=False),
    },
    "records that expire and are purged": {
        "deliveries": 1,
        "beats": 0,
        "fails": False,
        "policy": Policy(lease=60.0, retention=60.0),
        "bounds": Bounds(lapses=2, faults=2, crashes=0),
    },
}


@pytest.mark.sampled("interrupted claims", "parked at a lapse")
@pytest.mark.parametrize("label", TWO)
def test_two_workers_keep_every_invariant_in_every_interleaving(capsys, label):
    seen = seen_by(capsys, f"2 workers, {label}", workers=2, **TWO[label])
    assert not seen.violations
    assert seen.states > 3_000


def claim_together(register, bid):
    (claimed,) = yield from many.claim_many(register, [bid])
    if isinstance(claimed, Exception):
        raise claimed
    return claimed


def end_together(register, record, outcome, policy, *, clock, until):
    (ended,) = yield from many.end_many(register, [(record, outcome, policy)], clock, until)
    if isinstance(ended, StoreError):
        raise ended
    if ended is None:
        ended = yield from steps.end(register, record, outcome, policy, clock=clock, until=until)
    return ended


def abandon_together(register, bid):
    yield from many.abandon_many(register, [bid])


TOGETHER = Parts(claim=claim_together, end=end_together, abandon=abandon_together)


@pytest.mark.sampled("interrupted claims", "parked at a lapse")
@pytest.mark.parametrize("label", TWO)
def test_the_steps_of_batches_keep_them_too(capsys, label):
    seen = seen_by(capsys, f"2 workers, batches, {label}", workers=2, parts=TOGETHER, **TWO[label])
    assert not seen.violations
    assert seen.states > 3_000


TRANSACT = {
    "both, two faults": {"transacts": 2, "beats": 0, "bounds": Bounds(lapses=1, faults=2, crashes=1)},
    "one, the other claims": {"transacts": 1, "deliveries": 1},
    "one, redelivered": {"transacts": 1, "beats": 0, "fails": False},
    "one, attempts used up": {"transacts": 1, "beats": 0, "policy": Policy(lease=60.0, max_attempts=1)},
    "one, records that expire": {
        "transacts": 1,
        "beats": 0,
        "fails": False,
        "policy": Policy(lease=60.0, retention=60.0),
        "bounds": Bounds(lapses=2, faults=1, crashes=0),
    },
}


@pytest.mark.sampled(*list(TRANSACT)[:-1])
@pytest.mark.parametrize("label", TRANSACT)
def test_claim_effect_and_completion_in_one_write_keep_every_invariant(capsys, label):
    seen = seen_by(capsys, f"2 workers, transactions: {label}", workers=2, **TRANSACT[label])
    assert not seen.violations
    assert seen.states > 1_000


def finds(capsys, label: str, **options) -> set[str]:
    seen = seen_by(capsys, f"broken: {label}", workers=2, stop_at_first=True, **options)
    assert seen.violations
    assert all(path for path in seen.violations.values())
    return set(seen.violations)


class SwapsAnything(MemoryStore):
    def _matches(self, held: Record, seen: Record) -> bool:
        return True


class ForgetsTheFence(MemoryStore):
    def _matches(self, held: Record, seen: Record) -> bool:
        return (held.owner, held.beat) == (seen.owner, seen.beat)


class InsertsOverRecords(MemoryStore):
    def _insert(self, write: Write) -> Reply:
        self.records.pop(write.key, None)
        return super()._insert(write)


@pytest.mark.parametrize(
    ("store", "options"),
    [
        (SwapsAnything, {"bounds": Bounds(lapses=1, faults=1, crashes=0)}),
        (InsertsOverRecords, {"bounds": Bounds(lapses=1, faults=1, crashes=0)}),
        (SwapsAnything, {"transacts": 1, "beats": 0}),
        (InsertsOverRecords, {"transacts": 2, "beats": 0}),
    ],
)
def test_a_store_without_one_of_its_conditions_is_caught(capsys, store, options):
    assert finds(capsys, store.__name__, store=store, **options)


def test_a_store_that_compares_the_owner_but_not_the_fence_is_caught(capsys):
    # One bid may claim a key twice, when the reply to the first claim was lost and the claim taken over meanwhile.
    found = finds(capsys, "ForgetsTheFence", store=ForgetsTheFence, **TWO["two faults"])
    assert any("whose lease" in wrong or "believes" in wrong for wrong in found)


class OwnWallClock:
    """The store as a worker sees it that trusts its own clock more than the store's."""

    resolution = 0.0
    poll = 0.02

    def __init__(self, store: MemoryStore, wall: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall

    def insert(self, write: Write) -> Steps[Reply]:
        return (yield from self._store.insert(write))._replace(now=self._wall())

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        return (yield from self._store.swap(write, seen))._replace(now=self._wall())

    def changed(self, *arguments) -> Steps[None]:
        return self._store.changed(*arguments)

    def swap_many(self, pairs) -> Steps[list[Reply]]:
        replies = yield from self._store.swap_many(pairs)
        return [reply._replace(now=self._wall()) for reply in replies]


def test_a_worker_that_decides_with_its_own_wall_clock_is_caught(capsys):
    found = finds(capsys, "own wall clock", view=OwnWallClock, bounds=Bounds(lapses=0, faults=0, crashes=0))
    assert any("whose lease" in wrong or "believes" in wrong for wrong in found)


def believing(until: Callable[[Bid, Won, float], float]) -> Parts:
    """The real claim, with another belief in its lease."""

    def claim(store, bid):
        outcome = yield from steps.claim(store, bid)
        return outcome._replace(until=until(bid, outcome, bid.clock())) if isinstance(outcome, Won) else outcome

    return Parts(claim=claim)


def test_an_owner_that_counts_its_lease_from_the_reply_is_caught(capsys):
    parts = believing(lambda bid, won, now: now + bid.policy.lease * 0.99)
    # A reply that is slower than half a lease is renewed; a quicker one must still be counted from the request.
    bounds = Bounds(lapses=3, faults=0, crashes=0, strides=(0.4,))
    found = finds(capsys, "lease counted from the reply", parts=parts, bounds=bounds, deliveries=1, fails=False)
    assert any("believes in its lease" in wrong for wrong in found)


def test_a_heartbeat_that_opens_an_ended_key_again_is_caught(capsys):
    def heartbeat(store, claims, policy_of, clock):
        pairs = [(writes.next_version(record, IN_PROGRESS, lease=60.0, keep=60.0), record) for record, _ in claims]
        replies = yield from store.swap_many(pairs)
        return [Won(reply.record, clock() + 30.0) if reply.won else Lost(reply.record) for reply in replies]

    bounds = Bounds(lapses=0, faults=0, crashes=0)
    found = finds(capsys, "renews what has ended", parts=Parts(heartbeat=heartbeat), bounds=bounds, fails=False)
    assert any("completed record was changed" in wrong for wrong in found)


def test_a_settle_that_does_not_recognise_its_own_write_is_caught(capsys):
    def end(store, record, outcome, policy, *, clock, until):
        while True:
            write = writes.next_version(record, outcome.status, result=outcome.result, error=outcome.error, keep=60.0)
            try:
                reply = yield from store.swap(write, record)
            except Exception:
                continue
            if reply.won:
                return steps.Settled(reply.record)
            if reply.record is None or reply.record.owner != record.owner or reply.record.status != IN_PROGRESS:
                return Lost(reply.record)
            record = reply.record

    found = finds(capsys, "own write not recognised", parts=Parts(end=end))
    assert any("told that its claim is lost, and its completion stands" in wrong for wrong in found)


def test_a_claim_that_assumes_its_failed_write_was_not_made_is_caught(capsys):
    def claim(store, bid):
        for attempt in range(3):
            mine = bid._replace(owner=bid.owner + "x" * attempt)  # a new owner for each try
            reply = None
            try:
                reply = yield from store.insert(writes.first_claim(mine.key, mine.owner, mine.fingerprint, mine.policy))
            except Exception:
                continue
            if reply.won:
                return Won(reply.record, bid.clock() + bid.policy.lease * 0.5)
            if reply.record.status == COMPLETED:
                return steps.Replay(reply.record, None)
        return (
            steps.Refused(protocol.Verdict.BUSY, reply.record, 0.0) if reply else (yield from steps.claim(store, bid))
        )

    assert finds(capsys, "failed claim taken for not made", parts=Parts(claim=claim))


STEPS = {
    "one step": {
        "handler_steps": 1,
        "deliveries": 1,
        "beats": 0,
        "fails": False,
        "bounds": Bounds(lapses=1, faults=1, crashes=0),
    },
    "one step, failing handlers": {"handler_steps": 1, "deliveries": 1, "beats": 0},
    "two steps, redelivered": {"handler_steps": 2, "beats": 0, "fails": False},
    "a step beside a heartbeat": {"handler_steps": 1, "deliveries": 1, "fails": False},
    "two lapses": {"handler_steps": 1, "beats": 0, "fails": False, "bounds": Bounds(lapses=2, faults=1, crashes=0)},
}


@pytest.mark.sampled("one step")
@pytest.mark.parametrize("label", STEPS)
def test_recorded_steps_keep_every_invariant_in_every_interleaving(capsys, label):
    seen = seen_by(capsys, f"steps: {label}", **STEPS[label])
    assert not seen.violations


def unconditioned_step(store, record, add, policy, *, lease, clock, until):
    """Write the step to whatever record the key has."""
    asked = clock()
    reply = yield from store.load(record.key)
    held = reply.record
    if held is None or held.status != IN_PROGRESS:
        return Lost(held)
    stepped = writes.with_steps(held, add(held.steps), lease(), policy)
    reply = yield from store.swap(stepped, held)
    return Won(reply.record or held, asked + policy.lease / 2)


def unrecorded_step(store, record, add, policy, *, lease, clock, until):
    """Go on without the write."""
    return Won(record._replace(steps=add(record.steps)), until())
    yield


def forgetful_step(store, record, add, policy, *, lease, clock, until):
    """Record only the last step."""
    return (yield from write_steps(store, record, lambda _: add(None), policy, lease=lease, clock=clock, until=until))


@pytest.mark.sampled("unconditioned_step")
@pytest.mark.parametrize(
    ("step", "steps_", "found"),
    [
        (unconditioned_step, 1, "holds"),
        (unrecorded_step, 2, "before step 0 was recorded"),
        (forgetful_step, 2, "forgotten"),
    ],
)
def test_a_step_that_is_written_wrongly_is_caught(capsys, step, steps_, found):
    parts = Parts(step=step)
    seen = seen_by(capsys, step.__doc__, handler_steps=steps_, deliveries=1, beats=0, fails=False, parts=parts)
    assert found in str(seen)
