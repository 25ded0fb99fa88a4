"""The interleaving explorer with a completer: a worker whose claim is a look at the record, and then a claim of that version."""

import pytest

from explorer.actors import Parts
from explorer.explore import Explored, explore
from explorer.states import Bounds
from onceward.core import recovery, steps
from onceward.core.belief import belief
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict
from onceward.core.record import IN_PROGRESS
from onceward.core.recovery import NotFree, resume
from onceward.core.steps import Refused
from onceward.core.writes import next_claim


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


def explored(capsys, label, parts, **options) -> Explored:
    seen = explore(parts=parts, **options)
    with capsys.disabled():
        print(f"\n  explorer, a completer, {label}: {seen}", end="", flush=True)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("label", CASES)
def test_a_worker_and_a_completer_keep_every_invariant(capsys, label):
    seen = explored(capsys, label, with_completers(resume), **CASES[label])
    assert not seen.violations
    assert seen.states > 1_000


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
    seen = explored(
        capsys,
        "broken",
        with_completers(resume_any_version),
        stop_at_first=True,
        **CASES["a crash, two lapses and a fault"],
    )
    assert seen.violations
