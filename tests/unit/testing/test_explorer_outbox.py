"""The interleaving explorer on messages that leave with a completion: workers, duplicates and relays send them."""

import pytest

from explorer import senders
from explorer.actors import Parts, note_unsent
from explorer.explore import explore
from explorer.states import Bounds
from onceward.core import steps
from onceward.core.outbox_writes import noting
from onceward.core.steps import Lost, Won

pytestmark = pytest.mark.slow

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


@pytest.mark.sampled("a worker and a relay", "two workers and a relay")
@pytest.mark.parametrize("label", ORDERS)
def test_messages_keep_every_invariant_in_every_interleaving(label):
    seen = explore(**{**QUICK, **ORDERS[label]})
    assert not seen.violations
    assert seen.states > 3_000


def sends_before_the_commit(register, record, outcome, policy, **when):
    yield senders.sending("0", record.fence)
    return (yield from steps.end(register, record, outcome, policy, **when))


def strikes_out_before_it_sends(cast, seat, record, until):
    left = senders.messages_in(record)
    yield from cast.parts.note(
        cast.register, record, None, due=None, keep=None, clock=lambda: seat.clock, until=lambda: until
    )
    for number in left:
        yield senders.sending(number, record.fence)


def sends_in_any_order(cast, seat, record, until):
    for number in reversed(senders.messages_in(record)):
        yield senders.sending(number, record.fence)


def stops_before_the_last(cast, seat, record, until):
    for number in senders.messages_in(record)[:-1]:
        yield senders.sending(number, record.fence)
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


def believes_for_longer_than_the_lease(register, record, unsent, **when):
    noted = yield from note_unsent(register, record, unsent, **when)
    return noted._replace(until=noted.until + 60.0) if isinstance(noted, Won) else noted


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (Parts(end=sends_before_the_commit), "its completion is not recorded"),
        (Parts(send=strikes_out_before_it_sends), "committed, and never sent"),
        (Parts(send=sends_in_any_order), "before an earlier one"),
        (Parts(send=stops_before_the_last), "committed, and never sent"),
        (Parts(note=notes_without_a_condition), "believe that they alone"),
        pytest.param(
            Parts(note=believes_for_longer_than_the_lease), "believe that they alone", marks=pytest.mark.nightly
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(p.__name__ for p in value if p.__module__ == __name__),
)
def test_planted_faults_of_senders_are_found(parts, found):
    bounds = Bounds(lapses=2, faults=1, crashes=1)
    seen = explore(**{**QUICK, "relays": 2, "messages": 2, "bounds": bounds}, parts=parts, stop_at_first=True)
    assert found in str(seen)
