"""The interleaving explorer: what it sees of the real protocol, and that it notices a broken one."""

import time
from collections.abc import Callable

import pytest

from explorer import actors
from explorer.actors import Parts, note_unsent
from explorer.explore import Explored, explore
from explorer.states import Bounds
from onceward.core import many, recovery, steps, writes
from onceward.core.belief import belief
from onceward.core.outbox_writes import noting
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.record import IN_PROGRESS, Record, Reply, Write
from onceward.core.recovery import NotFree, resume
from onceward.core.steps import Bid, Lost, Refused, Won
from onceward.core.writes import next_claim
from onceward.errors import StoreError
from onceward.stores.memory import MemoryStore

pytestmark = pytest.mark.slow


def seen_by(capsys, label: str, **options) -> Explored:
    start = time.perf_counter()
    seen = explore(**options)
    with capsys.disabled():
        print(f"\n  explorer, {label}: {seen} ({time.perf_counter() - start:.1f} s)", end="", flush=True)
    return seen


EXPIRES = {"beats": 0, "fails": False, "policy": Policy(lease=60.0, retention=60.0)}
ATTEMPTS = {"beats": 0, "policy": Policy(lease=60.0, max_attempts=2)}
TWO = {
    "everything can go wrong once": {"deliveries": 1},
    "redelivered, two lapses": {"beats": 0, "fails": False, "bounds": Bounds(lapses=2, faults=1, crashes=1)},
    "two faults": {"deliveries": 1, "beats": 0, "bounds": Bounds(lapses=1, faults=2, crashes=1)},
    "failing handlers, redelivered": {"beats": 0, "bounds": Bounds(lapses=1, faults=0, crashes=1)},
    "interrupted claims": {"beats": 0, "fails": False, "bounds": Bounds(lapses=1, faults=1, crashes=0, interrupts=2)},
    "half leases": {"deliveries": 1, "fails": False, "bounds": Bounds(lapses=2, faults=1, crashes=1, strides=(0.6,))},
    "parked at a lapse": {"beats": 0, "fails": False, "policy": Policy(lease=60.0, on_lapse="park")},
    "two attempts at most": {**ATTEMPTS, "bounds": Bounds(lapses=1, faults=1, crashes=0)},
    "records that expire": {**EXPIRES, "bounds": Bounds(lapses=2, faults=1, crashes=0, purges=False)},
    "records that are purged": {**EXPIRES, "deliveries": 1, "bounds": Bounds(lapses=2, faults=2, crashes=0)},
}


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


TRANSACT = {
    "both, two faults": {"transacts": 2, "beats": 0, "bounds": Bounds(lapses=1, faults=2, crashes=1)},
    "one, the other claims": {"transacts": 1, "deliveries": 1},
    "one, redelivered": {"transacts": 1, "beats": 0, "fails": False},
    "one, attempts used up": {"transacts": 1, "beats": 0, "policy": Policy(lease=60.0, max_attempts=1)},
    "one, records that expire": {**EXPIRES, "transacts": 1, "bounds": Bounds(lapses=2, faults=1, crashes=0)},
}
ONE_STEP = {"handler_steps": 1, "beats": 0, "fails": False}
STEPS = {
    "one step": {**ONE_STEP, "deliveries": 1, "bounds": Bounds(lapses=1, faults=1, crashes=0)},
    "one step, failing handlers": {"handler_steps": 1, "deliveries": 1, "beats": 0},
    "two steps, redelivered": {**ONE_STEP, "handler_steps": 2},
    "a step beside a heartbeat": {"handler_steps": 1, "deliveries": 1, "fails": False},
    "two lapses": {**ONE_STEP, "bounds": Bounds(lapses=2, faults=1, crashes=0)},
}


def is_completer(bid) -> bool:
    """Return whether this worker is one: those but the first."""
    return not bid.owner.startswith("0.")


def with_completers(resuming) -> Parts:
    def claim(register, bid):
        if not is_completer(bid):
            return (yield from steps.claim(register, bid))
        seen = yield from register.load(bid.key)
        try:
            return (yield from resuming(seen, register, bid))
        except NotFree:
            return Refused(Verdict.BUSY, seen.record, 0.0)

    def abandon(register, bid):
        yield from (recovery.leave if is_completer(bid) else steps.abandon)(register, bid)

    return Parts(claim=claim, abandon=abandon)


ONCE = {"deliveries": 1, "beats": 0, "fails": False}
CASES = {
    "a crash, two lapses and a fault": {**ONCE, "bounds": Bounds(lapses=2, faults=1, crashes=1)},
    "failing handlers": {**ONCE, "fails": True, "bounds": Bounds(lapses=1, faults=1, crashes=1)},
    "interrupted": {**ONCE, "bounds": Bounds(lapses=1, faults=1, crashes=1, interrupts=2)},
    "a step": {**ONCE, "handler_steps": 1, "bounds": Bounds(lapses=1, faults=1, crashes=1)},
    "parked at a lapse": {**ONCE, "policy": Policy(lease=60.0, on_lapse="park")},
    "two completers": {**ONCE, "workers": 3, "bounds": Bounds(lapses=1, faults=0, crashes=1)},
    "one attempt at most": {**ONCE, "policy": Policy(lease=60.0, max_attempts=1)},
}

QUICK = {"workers": 1, "relays": 1, "messages": 2, "deliveries": 1, "beats": 0, "fails": False}
ORDERS = {
    "a worker and a relay": {},
    "two workers": {"workers": 2, "relays": 0, "messages": 1, "deliveries": 2},
    "two workers and a relay": {"workers": 2, "messages": 1, "bounds": Bounds(lapses=1, faults=0, crashes=1)},
    "two relays": {"relays": 2, "messages": 1, "bounds": Bounds(lapses=2, faults=1, crashes=0)},
    "redelivered, two lapses": {"deliveries": 2, "bounds": Bounds(lapses=2, faults=1, crashes=1)},
    "parts of a lease, two faults": {"bounds": Bounds(lapses=2, faults=2, crashes=0, strides=(0.3,))},
    "handlers that fail": {"deliveries": 2, "fails": True},
}

WORLDS = {  # each with what is explored, and more states than which must be seen
    **{f"two workers, {label}": ({"workers": 2, **given}, 3_000) for label, given in TWO.items()},
    **{f"batches, {label}": ({"workers": 2, "parts": TOGETHER, **given}, 3_000) for label, given in TWO.items()},
    **{f"transactions, {label}": ({"workers": 2, **given}, 1_000) for label, given in TRANSACT.items()},
    **{f"steps, {label}": (given, 0) for label, given in STEPS.items()},
    **{f"a completer, {label}": ({"parts": with_completers(resume), **given}, 1_000) for label, given in CASES.items()},
    **{f"messages, {label}": (QUICK | given, 3_000) for label, given in ORDERS.items()},
}
OFTEN = ["interrupted claims", "parked at a lapse", *list(TRANSACT)[:-1], "one step", *CASES, "a worker and a relay"]


@pytest.mark.sampled(*(name for name in WORLDS if name.partition(", ")[2] in {*OFTEN, "two workers and a relay"}))
@pytest.mark.parametrize("label", WORLDS)
def test_every_invariant_is_kept_in_every_interleaving(capsys, label):
    options, least = WORLDS[label]
    seen = seen_by(capsys, label, **options)
    assert not seen.violations
    assert seen.states > least


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


def test_a_step_that_is_written_to_whatever_record_the_key_has_is_caught(capsys):
    options = {"handler_steps": 1, "deliveries": 1, "beats": 0, "fails": False}
    assert "holds" in str(seen_by(capsys, "unconditioned step", parts=Parts(step=unconditioned_step), **options))


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


def resume_any_version(seen, store, bid):
    """The planted bug: claim the record as it is now, not as it was seen."""
    try:
        return (yield from resume(seen, store, bid))
    except NotFree:
        held = (yield from store.load(bid.key)).record
        if held is None or held.status != IN_PROGRESS or held.owner == bid.owner:
            raise
        first = steps.first_claim(bid.key, bid.owner, None, bid.policy)
        sent = bid.clock()
        reply = yield from store.swap(next_claim(first, held, fresh=False), held)
        if not reply.won:
            raise
        return steps.Won(reply.record, belief(store, bid.policy, sent, reply, reply.record, lease=60.0), held)


def test_a_completer_that_takes_another_version_is_noticed(capsys):
    case = CASES["a crash, two lapses and a fault"]
    assert finds(capsys, "a completer", parts=with_completers(resume_any_version), **case)


def sends_before_the_commit(register, record, outcome, policy, **when):
    yield actors.sending("0", record.fence)
    return (yield from steps.end(register, record, outcome, policy, **when))


def strikes_out_before_it_sends(cast, seat, record, until):
    left = actors.messages_in(record)
    yield from cast.parts.note(
        cast.register, record, None, due=None, keep=None, clock=lambda: seat.clock, until=lambda: until
    )
    for number in left:
        yield actors.sending(number, record.fence)


def stops_before_the_last(cast, seat, record, until):
    for number in actors.messages_in(record)[:-1]:
        yield actors.sending(number, record.fence)
    yield from note_unsent(
        cast.register, record, None, due=None, keep=None, clock=lambda: seat.clock, until=lambda: until
    )


def notes_without_a_condition(register, record, unsent, *, due, keep, clock, until):
    """Write to whatever is there."""
    sent = clock()
    held = (yield from register.load(record.key)).record
    if held is None or held.unsent is None:
        return Lost(held)
    reply = yield from register.swap(noting(held, unsent, due, keep), held)
    return Won(reply.record or held, sent + (due or 0.0))


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (Parts(end=sends_before_the_commit), "its completion is not recorded"),
        (Parts(send=strikes_out_before_it_sends), "committed, and never sent"),
        (Parts(send=stops_before_the_last), "committed, and never sent"),
        (Parts(note=notes_without_a_condition), "believe that they alone"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(p.__name__ for p in value if p.__module__ == __name__),
)
def test_planted_faults_of_senders_are_found(parts, found):
    bounds = Bounds(lapses=2, faults=1, crashes=1)
    seen = explore(**{**QUICK, "relays": 2, "messages": 2, "bounds": bounds}, parts=parts, stop_at_first=True)
    assert found in str(seen)
